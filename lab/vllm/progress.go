package vllm

import (
	"io"
	"strings"
	"time"

	"kvferry/internal/progress"
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

// setupProgress shows a position. The Task's lock guards it.
type setupProgress struct {
	*progress.Task
	began time.Time
	p     position
}

// newProgress shows a setup from steps[first] on, until Stop.
func newProgress(w io.Writer, terminal bool, steps []step, first int) *setupProgress {
	g := &setupProgress{Task: progress.New(w, terminal), began: time.Now(), p: position{steps: steps, at: first}}
	g.Start(progress.State{What: steps[first].name, Total: g.p.total(first).Milliseconds()})
	g.Poll(func(s *progress.State) {
		s.What, s.Done = g.p.steps[g.p.at].name, g.p.passed(first, time.Since(g.began)).Milliseconds()
	})
	return g
}

func (g *setupProgress) start(i int) {
	g.Update(func(*progress.State) { g.p.start(i, time.Since(g.began)) })
}

func (g *setupProgress) line(text string) {
	g.Update(func(*progress.State) { g.p.line(text, time.Since(g.began)) })
}

func (g *setupProgress) wrote(bytes int64) {
	g.Update(func(*progress.State) { g.p.wrote = bytes })
}
