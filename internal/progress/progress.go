// Package progress shows how far a run is. On a terminal it draws a bar with the time left, which is overwritten in
// place while lines scroll by above it. In a file or a pipe it writes a line every ten seconds instead.
//
// Drawing costs CPU time that the system under test may need, because both often run on the same cores. So changes are
// recorded as they come and drawn twice a second.
package progress

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// The periods at which a bar is drawn on a terminal and a line is written elsewhere.
const (
	barPeriod  = 500 * time.Millisecond
	linePeriod = 10 * time.Second
)

// barWidth leaves most of a line of 80 characters to the text before the bar and the times behind it.
const barWidth = 16

// A State says what a run is doing and how far it is.
type State struct {
	What   string        // what is being done, such as "warming up"
	Done   int64         // the part that is done, in the caller's units
	Total  int64         // the value of Done at the end; 0 if it is not known, until the next Start
	Unit   string        // plural noun for what Done counts; if empty, only a percentage is shown
	Failed int64         // how many of Done failed; shown unless 0
	Left   time.Duration // the time left, if the caller knows better than the rate so far; else 0
}

// A Task shows the State of a run from Start until Stop. Its methods may be called from several goroutines at once. No
// write to its writer is in progress after Stop has returned.
type Task struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex // guards the fields below and writes to w
	state State
	poll  func(*State)
	began time.Time
	timer *time.Timer              // calls tick; nil while the Task is stopped
	bar   *progressbar.ProgressBar // nil while the Task is stopped, and where there is no terminal
}

// New returns a stopped Task that writes to w. The argument terminal reports whether w is a terminal.
func New(w io.Writer, terminal bool) *Task { return &Task{w: w, terminal: terminal} }

// Start shows s, in place of what was shown before, and measures time from now on. It drops the function of Poll.
func (t *Task) Start(s State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
	t.state, t.began = s, time.Now()
	if t.terminal {
		t.bar = progressbar.NewOptions64(cmp.Or(s.Total, -1),
			progressbar.OptionSetWriter(t.w),
			progressbar.OptionSetWidth(barWidth),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionClearOnFinish(),
			// By default a bar of unknown length has a goroutine that draws it for ever, even over the
			// report that follows. With an interval of 0 it is drawn only on request.
			progressbar.OptionSetSpinnerChangeInterval(0),
		)
		t.bar.StartWithoutRender() // or the bar would measure time from the first change on
		t.draw()
	}
	t.timer = time.AfterFunc(t.period(), t.tick)
}

// Stop takes the bar off the terminal, so that a report can be printed, and shows nothing more until the next Start.
func (t *Task) Stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop()
}

// stop implements Stop. The caller holds mu.
func (t *Task) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.clear()
	t.timer, t.bar, t.poll = nil, nil, nil
}

func (t *Task) period() time.Duration {
	if t.terminal {
		return barPeriod
	}
	return linePeriod
}

// tick shows the state once a period.
func (t *Task) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.timer == nil: // stopped since the timer fired
		return
	case t.bar != nil:
		t.draw()
	default:
		t.update()
		fmt.Fprintln(t.w, t.state.line(time.Since(t.began)))
	}
	t.timer.Reset(t.period())
}

// update has Poll's function bring the state up to date. The caller holds mu.
func (t *Task) update() {
	if t.poll != nil {
		t.poll(&t.state)
	}
}

// draw draws the bar, which must not be nil. The caller holds mu. Errors are ignored: a run goes on without its
// terminal.
func (t *Task) draw() {
	t.update()
	s := &t.state
	done := s.Done
	if s.Total > 0 {
		if s.Total != t.bar.GetMax64() {
			t.bar.ChangeMax64(s.Total)
		}
		done = min(done, s.Total-1) // a bar that has reached its end cannot be drawn again
	}
	// The bar averages the rate over its last changes: a change of 0 would count as a rate of 0.
	if done != int64(t.bar.State().CurrentBytes) {
		_ = t.bar.Set64(done)
	}
	t.bar.Describe(s.text())
}

// clear takes the bar off the terminal until it is drawn again. The caller holds mu.
func (t *Task) clear() {
	if t.bar != nil {
		_ = t.bar.Clear()
	}
}

// Update calls f to change the state, which is shown at the end of the period. The Task is locked while f runs, so f
// may also change what the function of Poll reads, and must not call the Task's methods.
func (t *Task) Update(f func(*State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.state)
}

// Poll has f bring the state up to date each time before it is shown, for what changes with time. It draws a bar at
// once. The Task is locked while f runs, as for Update.
func (t *Task) Poll(f func(*State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.poll = f
	if t.bar != nil {
		t.draw()
	}
}

// Describe sets State.What.
func (t *Task) Describe(what string) { t.Update(func(s *State) { s.What = what }) }

// Set sets State.Done.
func (t *Task) Set(done int64) { t.Update(func(s *State) { s.Done = done }) }

// Add adds to State.Done.
func (t *Task) Add(n int64) { t.Update(func(s *State) { s.Done += n }) }

// Left returns a phrase with the time left, such as ", about 1m30s left", or "" if that is not known.
func (t *Task) Left() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.left(time.Since(t.began))
}

// Say writes a line, above the bar on a terminal. Elsewhere the next line about the state is written a whole period
// later, so a run that says enough has none.
func (t *Task) Say(line string) { t.Pause(func() { fmt.Fprintln(t.w, line) }) }

// Log is like Say, but writes nothing on a terminal, for lines that repeat what the bar shows.
func (t *Task) Log(line string) {
	if !t.terminal {
		t.Say(line)
	}
}

// Pause takes the bar off the terminal while f prints lines, to the Task's writer or to another on the same terminal.
// The Task is locked while f runs, as for Update.
func (t *Task) Pause(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
	f()
	if t.bar != nil {
		t.draw()
	}
	if t.timer != nil {
		t.timer.Reset(t.period())
	}
}

// text returns what stands before a bar and begins a line.
func (s *State) text() string {
	text := s.What
	switch {
	case s.Unit != "" && s.Total > 0:
		text += fmt.Sprintf(": %d of %d %s", s.Done, s.Total, s.Unit)
	case s.Unit != "":
		text += fmt.Sprintf(": %d %s", s.Done, s.Unit)
	}
	if s.Failed > 0 {
		text += fmt.Sprintf(", %d failed", s.Failed)
	}
	return text
}

// line returns the line for a log after the run has taken the given time.
func (s *State) line(took time.Duration) string {
	line := s.text()
	if s.Unit == "" && s.Total > 0 {
		line += fmt.Sprintf(": %d %% of all", 100*s.Done/s.Total)
	}
	return line + ", " + took.Round(time.Second).String() + s.left(took)
}

// left implements Task.Left for a run that has taken the given time. The rate of less than a tenth of a run would be a
// guess.
func (s *State) left(took time.Duration) string {
	left := s.Left
	if left == 0 && s.Total > 0 && s.Done >= max(s.Total/10, 1) {
		left = time.Duration(float64(took) / float64(s.Done) * float64(s.Total-s.Done))
	}
	if left = left.Round(time.Second); left <= 0 {
		return ""
	}
	return fmt.Sprintf(", about %v left", left)
}
