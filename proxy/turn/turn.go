// Package turn keeps the handlers of requests in the order in which a node has named their
// requests, when it has named several in one message.
package turn

import "time"

// A Turn keeps requests in the order in which a node has named them in one message:
// those whose prompts one step has computed go on to the decode node first come, first
// served, and not as their handlers happen to wake up. Without it 0 of 30 batches of 8 kept
// their order, and the mean TPOT of 1024/q2 was 45.8 or 48.7 ms, as it fell.
type Turn struct {
	before <-chan struct{} // closed when the one before has had its turn; nil for the first
	over   chan struct{}   // nil for the last
}

// longest bounds the wait for a handler that has left, or is busy with its client. It is below
// a decode step of the shipped profile (11.4 ms), so that a late one costs the next a step at
// most.
const longest = 10 * time.Millisecond

// Wait returns when those before have had their turn, or after longest.
func (t Turn) Wait() {
	if t.before == nil {
		return
	}
	late := time.NewTimer(longest)
	defer late.Stop()
	select {
	case <-t.before:
	case <-late.C:
	}
}

// Pass lets the next one go. It is called once, by whoever reads the report.
func (t Turn) Pass() {
	if t.over != nil {
		close(t.over)
	}
}

// Next is that of the next of several requests. before is nil for the first, and
// kept between the calls.
func Next(before *chan struct{}, last bool) Turn {
	t := Turn{before: *before}
	if !last {
		t.over = make(chan struct{})
	}
	*before = t.over
	return t
}
