package batching

import "kvferry/engine"

// v0 is what vLLM 0.6 did (Scheduler._schedule_default, _schedule_chunked_prefill):
//
//	PrefillFirst: waiting prompts up to MaxBatchedTokens, alone; else all decodes
//	Chunked:      all decodes, then prompts up to ChunkTokens, the last cut short
//
// A prompt that is computed in part waits on, with its blocks.
type v0 struct{ chunked bool }

func (p v0) kind() engine.Kind {
	if p.chunked {
		return engine.Mixed
	}
	return engine.Prefill
}

func (v0) piecemeal() bool { return false }

func (v0) decoded() {}

// reserve keeps 1 % of the pool for the running sequences to grow into, as vLLM
// does: a prompt admitted into the last blocks would be preempted at once.
func (v0) reserve(s *Scheduler, _ *sequence) int {
	if len(s.running)+len(s.pending) == 0 {
		return 0
	}
	return s.cfg.Pool.Total() / 100
}

func (p v0) form(s *Scheduler, step *engine.Step) {
	if p.chunked {
		p.decodes(s, step)
		s.prompts(step, s.cfg.ChunkTokens-len(step.Works), engine.Compute, true)
		return
	}
	s.prompts(step, s.cfg.MaxBatchedTokens, engine.Compute, false)
	if len(step.Works) == 0 {
		p.decodes(s, step)
	}
}

// decodes adds every running sequence that has room for its next token. Where
// the pool has none, the sequences admitted last are preempted, one by one:
// prompts computed in part, then running ones. They go before any prompt that came later.
func (v0) decodes(s *Scheduler, step *engine.Step) {
	for i := 0; i < len(s.running) && len(step.Works) < s.cfg.MaxNumSeqs; i++ {
		q := s.running[i]
		if !s.adapters.serves(q) {
			continue
		}
		for !q.Table.Grow(s.cfg.Pool, q.Len()) {
			s.starved = true
			if s.evictPrompt() {
				continue
			}
			victim := s.running[len(s.running)-1]
			s.preempt(victim, 0)
			if victim == q {
				return
			}
		}
		s.work(step, q, q.Len()-q.Held)
	}
}
