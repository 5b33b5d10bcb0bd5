package kvtransfer

import (
	"time"

	"kvferry/transport"
)

// This file is what the agent tells the transport of bytes that its moves brought: right or
// wrong. A node that has read them finds out itself if they are right. If they are not, the node
// that they came from has to look whether it has them right: either end hears of that from the
// other side, perhaps after the transfer has ended.

// An ended transfer is one that wrote, or that read and has not been judged.
type ended struct {
	key   any
	trail transport.Trail
	at    time.Duration
	well  bool // all was written
}

const (
	// judgeWithin is how long a peer's verdict on an ended transfer may take: the check of
	// a part, and two messages. What nobody has complained of by then was right.
	judgeWithin = 5 * time.Second
	// maxEnded bounds what is remembered, whatever the rate: of 200 transfers a second all.
	maxEnded = 1024
)

// Vouch says that all bytes of a transfer that read were right. Only the first counts.
func (t *Transfer) Vouch() {
	t.a.mu.Lock()
	trail, first := t.trail, !t.judged
	t.judged = true
	t.a.mu.Unlock()
	if first {
		trail.Vouch()
	}
}

// retireLocked keeps what may yet be said of a transfer that wrote. The function that it
// returns, to be called without the lock, blames it if that was said while it ran, and
// vouches for those that nobody has complained of.
func (a *Agent) retireLocked(t *Transfer, well bool) func() {
	now := a.clk.Now()
	var right []transport.Trail
	if !t.judged && t.wrong == nil && t.opt.Key != nil {
		a.ended = append(a.ended, ended{t.opt.Key, t.trail, now, well && t.wrote})
	}
	for len(a.ended) > 0 && (now-a.ended[0].at > judgeWithin || len(a.ended) > maxEnded) {
		if e := &a.ended[0]; e.well {
			right = append(right, e.trail)
		}
		a.ended[0] = ended{}
		a.ended = a.ended[1:]
	}
	trail, wrong := t.trail, t.wrong
	return func() {
		if wrong != nil {
			trail.Blame(wrong)
		}
		for _, r := range right {
			r.Vouch()
		}
	}
}

// Blame is told that what a transfer of that key wrote or read has come out wrong, and was right
// where it came from. While it runs, what it has under way may be just that: the other side may
// know that it has landed before this one. So then it is blamed at its end.
func (a *Agent) Blame(key any, err error) {
	a.mu.Lock()
	if t := a.live[key]; t != nil {
		t.wrong = err
		a.mu.Unlock()
		return
	}
	var trail transport.Trail
	for i := range a.ended {
		if e := &a.ended[i]; e.key == key {
			trail = e.trail
			e.trail, e.key, e.well = transport.Trail{}, nil, false
			break
		}
	}
	a.mu.Unlock()
	trail.Blame(err)
}
