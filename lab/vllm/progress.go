package vllm

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"kvferry/bench/bar"
)

// The bar is drawn twice a second; where there is no terminal, a line comes every ten.
const (
	barPeriod  = 500 * time.Millisecond
	linePeriod = 10 * time.Second
)

// A position is how far a setup is, in time on the machine on which steps were timed. It has no
// clock.
type position struct {
	steps []step
	at    int           // the step that is under way
	began time.Duration // of what is under way, since the setup's begin
	done  time.Duration // of this step, before what is under way
	wrote int64         // by the command that is under way
}

// start begins steps[i].
func (p *position) start(i int, now time.Duration) {
	p.at, p.began, p.done, p.wrote = i, now, 0, 0
}

// line takes a line that the command has printed: uv has downloaded and installed all, and goes on
// to compile it, which takes as long again.
func (p *position) line(text string, now time.Duration) {
	if s := p.steps[p.at]; s.unpacks > 0 && p.done == 0 && strings.HasPrefix(text, "Installed ") {
		p.done, p.began = s.took/2, now
	}
}

// passed and total are times from first, the step with which this setup began.
func (p *position) passed(first int, now time.Duration) time.Duration {
	var sum time.Duration
	for _, s := range p.steps[first:p.at] {
		sum += s.took
	}
	s := p.steps[p.at]
	if s.unpacks > 0 && p.done == 0 {
		return sum + time.Duration(min(1, float64(p.wrote)/float64(s.unpacks))*float64(s.took/2))
	}
	// One that takes longer than it should is not over: it waits just before its end.
	return sum + p.done + min(now-p.began, (s.took-p.done)*9/10)
}

func (p *position) total(first int) time.Duration {
	var sum time.Duration
	for _, s := range p.steps[first:] {
		sum += s.took
	}
	return sum
}

// progress shows a position: a bar with the time left on a terminal, else a line now and then.
type progress struct {
	*bar.Bar
	first int
	began time.Time

	mu sync.Mutex
	p  position
}

// newProgress begins to show a setup from steps[first] on, until Wipe.
func newProgress(w io.Writer, terminal bool, steps []step, first int) *progress {
	g := &progress{Bar: bar.New(w, terminal), first: first, began: time.Now(), p: position{steps: steps, at: first}}
	g.Show(bar.Look{Max: g.p.total(first).Milliseconds()})
	period := linePeriod
	if terminal {
		period = barPeriod
	}
	g.Every(period, g.draw)
	return g
}

func (g *progress) draw() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Since(g.began)
	passed, total := g.p.passed(g.first, now), g.p.total(g.first)
	if g.Shown() {
		g.Set(passed.Milliseconds())
		return
	}
	line := fmt.Sprintf("%s: %.0f %% of all", g.p.steps[g.p.at].name, 100*passed.Seconds()/total.Seconds())
	if passed > total/10 { // before that it would be a guess
		line += fmt.Sprintf(", about %.0f s left", now.Seconds()*(total-passed).Seconds()/passed.Seconds())
	}
	g.Say(line)
}

func (g *progress) start(i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.p.start(i, time.Since(g.began))
	g.Describe(g.p.steps[i].name)
}

func (g *progress) line(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.p.line(text, time.Since(g.began))
}

func (g *progress) wrote(bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.p.wrote = bytes
}
