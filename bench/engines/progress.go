package engines

import (
	"fmt"
	"strings"
	"time"

	"kvferry/bench/bar"
)

// progress says how far a run is: a line for each turn that ends, with the time that is left by
// what turns took so far, and on a terminal a bar. It is used by one goroutine.
type progress struct {
	*bar.Bar
	turns, done, skipped int
	took                 time.Duration // by those that are done
	began                time.Time
	rounds               int
}

func newProgress(cfg Config, settings int) *progress {
	p := &progress{Bar: bar.New(cfg.Progress, cfg.Terminal), turns: settings * cfg.Rounds, rounds: cfg.Rounds}
	p.Show(bar.Look{Max: int64(p.turns), Width: 16})
	return p
}

// begin says whose turn it is.
func (p *progress) begin(s *Setting, round int) {
	p.began = time.Now()
	p.Describe(fmt.Sprintf("round %d/%d %v", round, p.rounds, s))
}

// skip leaves out the turn of a setting that could not run before.
func (p *progress) skip() { p.skipped++ }

// end tells of a turn that is over, and of the samples that it gave.
func (p *progress) end(s *Setting, round int, samples []Sample, err error) {
	took := time.Since(p.began)
	p.done++
	p.took += took
	p.Set(int64(p.done + p.skipped))
	line := fmt.Sprintf("round %d/%d %v: %d prompts in %.0f s", round, p.rounds, s, len(samples), took.Seconds())
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		line += "; it FAILED: " + first
	}
	if left := p.left(); left > 0 {
		line += fmt.Sprintf("; about %.0f s left", left.Seconds())
	}
	p.Say(line)
}

// left is the time that the turns take which are still to come, by the mean of those that are done.
func (p *progress) left() time.Duration {
	return p.took / time.Duration(p.done) * time.Duration(p.turns-p.done-p.skipped)
}
