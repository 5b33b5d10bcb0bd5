package batching

import "kvferry/engine"

// v1 is what vLLM has done since 0.8 (v1/core/sched/scheduler.py, Scheduler.schedule, read in
// 0.32): there are no two phases. A sequence has tokens and computed tokens, and a step gives
// each as many of the missing ones as a budget of MaxBatchedTokens holds. The running sequences
// come first, in the order in which they were admitted, prompts computed in part among them;
// then what waits, in order, the last cut short. One is admitted if the pool has room for its
// whole prompt (scheduler_reserve_full_isl); it gets its blocks chunk by chunk. Where a
// running one lacks a block, the last admitted is preempted and starts again, before all that
// wait, and that step admits nobody.
type v1 struct{}

// kind is Mixed also of a step with prompts alone: there may always be decodes among them.
func (v1) kind() engine.Kind { return engine.Mixed }

func (v1) piecemeal() bool { return true }

func (v1) decoded() {}

// reserve is vLLM's watermark, which is 0 unless it is told otherwise.
func (v1) reserve(*Scheduler, *sequence) int { return 0 }

func (p v1) form(s *Scheduler, step *engine.Step) {
	budget, preemptions := s.cfg.MaxBatchedTokens, s.preemptions
	long := s.cfg.LongPrefillTokens
	if long == 0 || len(s.running)+len(s.waiting) == 1 { // alone it keeps nobody waiting
		long = budget
	}
	for i := 0; i < len(s.running) && budget > 0 && len(step.Works) < s.cfg.MaxNumSeqs; i++ {
		q := s.running[i]
		if !s.adapters.serves(q) {
			continue
		}
		n := min(q.Len()-q.Held, long, budget)
		for !q.Table.Grow(s.cfg.Pool, q.Held+n) {
			s.starved = true
			victim := s.running[len(s.running)-1]
			s.preempt(victim, s.holding())
			if victim == q {
				return
			}
		}
		s.work(step, q, n)
		budget -= n
	}
	for i := 0; s.preemptions == preemptions && budget > 0 && i < len(s.waiting); {
		q := s.waiting[i]
		if q.KV == engine.Compute && !s.admits(q) {
			i++ // vLLM skips it
			continue
		}
		if q.KV != engine.Compute || s.placed() >= s.cfg.MaxNumSeqs || len(q.Table.Refs()) == 0 && !s.allocate(q) {
			s.starved = s.starved || q.KV == engine.Compute
			return
		}
		if q.loading {
			s.park()
			continue
		}
		n := min(q.Len()-q.Held, long, budget)
		q.Table.Grow(s.cfg.Pool, q.Held+n) // it fits: allocate has made sure of that
		s.work(step, q, n)
		budget -= n
		q.where = inRunning
		s.dequeue(i)
		s.running = append(s.running, q)
	}
}
