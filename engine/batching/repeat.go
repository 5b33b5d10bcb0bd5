package batching

import "kvferry/engine"

// Steady implements engine.Repeater. Steps are alike while each decodes all that runs, nobody
// waits, no token of theirs is the last, and the pool has blocks for all of them.
func (s *Scheduler) Steady(limit int) int {
	if s.step == nil || s.step.Kind != engine.Decode || len(s.works) != len(s.running) || s.adapters.any || s.offload.tiers != nil ||
		len(s.waiting)+len(s.future)+len(s.out)+len(s.delayed)+len(s.release) > 0 {
		return 0
	}
	for i, q := range s.works {
		if q != s.running[i] || q.suspend || s.step.Works[i].N != 1 {
			return 0
		}
		limit = min(limit, q.MaxTokens-q.Output()-1)
	}
	need := 0
	for _, q := range s.works {
		need += s.missing(q, q.Len()+limit)
	}
	if need > s.cfg.Pool.Free() {
		return 0
	}
	return max(limit, 0)
}

// Again implements engine.Repeater.
func (s *Scheduler) Again(done engine.Done) {
	for i, q := range s.works {
		q.Held++
		q.Append(done.Tokens[i])
		s.step.Works[i].From++
		q.Table.Grow(s.cfg.Pool, q.Len()) // it fits: Steady has made sure of that
	}
	s.ended, s.step.At = done.At, done.At
	s.policy.decoded()
}
