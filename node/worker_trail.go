package node

import (
	"time"

	"kvferry/handoff"
	"kvferry/transport"
)

// This file is what the worker tells the transfer engine of bytes that its moves
// brought: right or wrong. A decode node that reads checks them itself. A prefill node
// that writes hears of wrong ones from the proxy, in a Cancel with bad_kv, perhaps after
// the leg has ended: its last part is checked then.

// An endedLeg is a prefill leg that wrote its KV and has ended.
type endedLeg struct {
	sess  *session
	sid   uint64
	trail transport.Trail
	at    time.Duration
	well  bool // all was written
}

const (
	// judgeWithin is how long a decode node's verdict on an ended leg may take: the
	// check of a layer, and two messages. What nobody has complained of by then was
	// right.
	judgeWithin = 5 * time.Second
	// maxEnded bounds what is remembered, whatever the rate: of 200 requests a second
	// all.
	maxEnded = 1024
)

// judge takes what the check of a part of our own moves has found.
func (w *worker) judge(l *live, err error) {
	if l.leg != handoff.DecodeLeg || !l.handoff.Moves(l.leg) || l.judged {
		return
	}
	if err != nil {
		l.judged = true
		l.trail.Blame(err)
		return
	}
	l.right++
	parts := 1
	if l.handoff.Parts == handoff.Tensors {
		parts = 3
	}
	if l.right == parts {
		l.judged = true
		l.trail.Vouch()
	}
}

// retire keeps what may yet be said of a leg's moves, or blames them if that was said
// while the leg ran, and vouches for those that nobody has complained of.
func (w *worker) retire(l *live) {
	now := w.clk.Now()
	switch {
	case l.leg != handoff.PrefillLeg || !l.handoff.Moves(l.leg):
	case l.wrong != nil:
		l.trail.Blame(l.wrong)
	default:
		w.ended = append(w.ended, endedLeg{l.sess, l.sid, l.trail, now, l.done})
	}
	for len(w.ended) > 0 && (now-w.ended[0].at > judgeWithin || len(w.ended) > maxEnded) {
		if e := &w.ended[0]; e.well {
			e.trail.Vouch()
		}
		w.ended[0] = endedLeg{}
		w.ended = w.ended[1:]
	}
}

// blame is told that the other side found what a leg wrote to be wrong. While the leg
// runs, what it has under way may be just that: the other side may know that it has
// landed before this one.
func (w *worker) blame(s *session, sid uint64, err error) {
	if l := w.live[s.requests[sid]]; l != nil {
		l.wrong = err
		return
	}
	for i := range w.ended {
		if e := &w.ended[i]; e.sess == s && e.sid == sid {
			e.trail.Blame(err)
			e.trail, e.well = transport.Trail{}, false
			return
		}
	}
}
