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
}

func newProgress(cfg Config, turns int) *progress {
	p := &progress{Bar: bar.New(cfg.Progress, cfg.Terminal), turns: turns}
	p.Show(bar.Look{Max: int64(p.turns), Width: 16})
	return p
}

// begin says whose turn it is.
func (p *progress) begin(what string) {
	p.began = time.Now()
	p.Describe(what)
}

// skip leaves out the turn of a setting that could not run before.
func (p *progress) skip() { p.skipped++ }

// end tells of a turn that is over, and what it gave.
func (p *progress) end(what, gave string, err error) {
	took := time.Since(p.began)
	p.done++
	p.took += took
	p.Set(int64(p.done + p.skipped))
	line := fmt.Sprintf("%s: %s in %.0f s", what, gave, took.Seconds())
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
