package proxy

import (
	"fmt"

	"kvferry/proto"
)

// shape is how one submission of a request is split into legs.
//
//	full, prefillOnly:  proxy --FULL|PREFILL--> N   tokens 0.. from N
//	serial (v0, pull):  proxy --PREFILL--> P        P's tokens are ignored
//	                    P --Prefilled{kv}--> proxy
//	                    proxy --DECODE{kv}--> D     tokens 0.. from D
//	layerwise:          proxy --DECODE--> D
//	                    D --Reserved{kv}--> proxy
//	                    proxy --PREFILL{kv}--> P    token 0 from P, 1.. from D
type shape int

const (
	shapeFull shape = iota
	shapePrefillOnly
	shapeSerial
	shapeLayerwise
)

// step is what an attempt wants done next.
type step int

const (
	stepNone          step = iota
	stepSubmitDecode       // serial: the prompt is computed
	stepSubmitPrefill      // layerwise: the blocks are reserved
	stepDone
)

// attempt is one submission of a request as a state machine: legs' tokens and
// reports in, tokens in order and exactly once and the next step out. It has
// no clock and does no I/O.
//
// Invariant: tokens 0..next-1 of this submission were returned by token, and
// held has none of them.
type attempt struct {
	shape shape
	want  uint32 // tokens asked of this submission

	compute *leg // the leg that computes the prompt: full or prefill
	decode  *leg // nil unless there is one

	next    uint32
	held    map[uint32]arrival // beyond a gap: D's tokens before P's first
	flowing bool               // the decode leg has its KV: it emitted a token that needs it
	kv      *proto.KVRef       // what the second leg is to be told

	prefilled bool // compute has ended well
	finished  bool // the leg that emits the last token has ended well
	reason    proto.FinishReason
	breakdown proto.Breakdown
	cached    uint32
}

func newAttempt(disagg bool, handoff string, want uint32) *attempt {
	a := &attempt{shape: shapeFull, want: want}
	switch {
	case !disagg:
	case want == 1:
		a.shape = shapePrefillOnly
	case handoff == HandoffLayerwise:
		a.shape = shapeLayerwise
	default:
		a.shape = shapeSerial
	}
	return a
}

// token takes one token and appends to ready those that are now in order.
// Duplicates and tokens of other legs are dropped.
func (a *attempt) token(ready []arrival, t arrival) ([]arrival, error) {
	switch {
	case t.leg != a.compute && t.leg != a.decode:
		return ready, nil // of an earlier attempt
	case a.shape == shapeSerial && t.leg == a.compute:
		return ready, nil // D recomputes the first token
	case t.position >= a.want:
		return ready, a.broken(t.leg, "token %d of %d", t.position, a.want)
	}
	if t.leg == a.decode && (a.shape == shapeSerial || t.position > 0) {
		a.flowing = true
	}
	if t.position < a.next {
		return ready, nil
	}
	if t.position > a.next {
		if a.held == nil {
			a.held = make(map[uint32]arrival)
		}
		if _, ok := a.held[t.position]; !ok {
			a.held[t.position] = t
		}
		return ready, nil
	}
	for {
		ready = append(ready, t)
		a.next++
		held, ok := a.held[a.next]
		if !ok {
			return ready, nil
		}
		delete(a.held, a.next)
		held.at = max(held.at, t.at) // it could not go out before
		t = held
	}
}

// report takes what a node said of a leg. The error, if any, ends the attempt.
func (a *attempt) report(r report) (step, error) {
	if r.leg != a.compute && r.leg != a.decode {
		return stepNone, nil
	}
	switch {
	case r.lost != nil:
		if a.spent(r.leg) {
			return a.done(r.leg)
		}
		return stepNone, a.fail(r.leg, proto.FailCode_FAIL_UNSPECIFIED, true, r.lost)
	case r.failed != nil:
		sumBreakdown(&a.breakdown, r.failed.Breakdown)
		if a.spent(r.leg) {
			return a.done(r.leg)
		}
		code := r.failed.Code
		if code == proto.FailCode_FAIL_UNSPECIFIED {
			code = proto.FailCode_FAIL_INTERNAL
		}
		return stepNone, a.fail(r.leg, code, r.failed.Retryable, fmt.Errorf("%s", r.failed.Message))
	case r.reserved != nil:
		if a.shape != shapeLayerwise || r.leg != a.decode {
			return stepNone, a.broken(r.leg, "unasked Reserved")
		}
		if a.compute != nil {
			return stepNone, nil
		}
		if r.reserved.Kv == nil {
			return stepNone, a.broken(r.leg, "Reserved without kv")
		}
		a.kv = r.reserved.Kv
		return stepSubmitPrefill, nil
	case r.prefilled != nil:
		return a.computed(r)
	case r.finished != nil:
		return a.ended(r)
	}
	return stepNone, nil
}

func (a *attempt) computed(r report) (step, error) {
	if r.leg != a.compute || a.shape == shapeFull {
		return stepNone, a.broken(r.leg, "unasked Prefilled")
	}
	if a.prefilled {
		return stepNone, nil
	}
	a.prefilled = true
	sumBreakdown(&a.breakdown, r.prefilled.Breakdown)
	a.cached = max(a.cached, r.prefilled.CachedTokens)
	switch a.shape {
	case shapeSerial:
		if r.prefilled.Kv == nil {
			return stepNone, a.broken(r.leg, "Prefilled without kv")
		}
		a.kv = r.prefilled.Kv
		return stepSubmitDecode, nil
	case shapePrefillOnly:
		a.finished, a.reason = true, proto.FinishReason_FINISH_LENGTH
	}
	return a.done(r.leg)
}

func (a *attempt) ended(r report) (step, error) {
	sumBreakdown(&a.breakdown, r.finished.Breakdown)
	a.cached = max(a.cached, r.finished.CachedTokens)
	if r.leg == a.compute {
		a.prefilled = true
		switch a.shape {
		case shapeSerial:
			return stepNone, a.broken(r.leg, "Finished instead of Prefilled")
		case shapeLayerwise:
			// The first token was the last: there is nothing to decode.
			if r.finished.Reason != proto.FinishReason_FINISH_STOP {
				return a.done(r.leg)
			}
		}
	}
	a.finished, a.reason = true, r.finished.Reason
	return a.done(r.leg)
}

// done reports whether everything is there. A submission that ends short of
// what was asked, and not by a stop, has lost tokens: it is never passed off
// as complete.
func (a *attempt) done(last *leg) (step, error) {
	if !a.finished {
		return stepNone, nil
	}
	if a.shape == shapeLayerwise && !a.prefilled {
		return stepNone, nil // P's first token, or its account of the time, is on its way
	}
	short := a.next < a.want && a.reason != proto.FinishReason_FINISH_STOP
	if short || len(a.held) > 0 {
		return stepNone, a.broken(last, "ended after token %d of %d", a.next, a.want)
	}
	return stepDone, nil
}

// spent reports whether a prefill leg that failed or was lost is no longer
// needed: its token is out, and decode emitted one that took its KV. Of one
// that was lost the part of the breakdown is then missing.
func (a *attempt) spent(l *leg) bool {
	if l != a.compute || a.next == 0 || !a.flowing && !a.finished {
		return false
	}
	a.prefilled = true
	return true
}

// running reports whether the node that generates has begun to. A layerwise request whose
// first token is out may wait still, for its KV to arrive.
func (a *attempt) running() bool {
	return a.next > 0 && (a.shape == shapeFull || a.shape == shapePrefillOnly || a.flowing)
}

// complete reports whether every token asked for is out, whatever else the
// nodes have still to say.
func (a *attempt) complete() bool { return a.next == a.want }

func (a *attempt) fail(l *leg, code proto.FailCode, retryable bool, err error) error {
	return &LegError{Node: l.node.info.Id, Leg: l.kind, Code: code, Retryable: retryable, Err: err}
}

func (a *attempt) broken(l *leg, format string, args ...any) error {
	return a.fail(l, proto.FailCode_FAIL_INTERNAL, true, fmt.Errorf("%w: "+format, append([]any{errBrokenNode}, args...)...))
}
