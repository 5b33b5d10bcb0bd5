package batching

import (
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// launch forms the next step. The order of the two policies:
//
//	PrefillFirst: waiting prompts up to MaxBatchedTokens, alone; else all decodes
//	Chunked:      all decodes, then prompts up to ChunkTokens, the last cut short
func (s *Scheduler) launch(now, notBefore time.Duration) {
	step := &s.spare
	s.works = s.works[:0]
	*step = engine.Step{Works: step.Works[:0], At: max(s.ended, s.relief, notBefore)}
	s.starved = false
	if s.cfg.Policy == Chunked {
		s.decodes(step)
		s.prompts(step, s.cfg.ChunkTokens-len(step.Works))
	} else {
		s.prompts(step, s.cfg.MaxBatchedTokens)
		if len(step.Works) == 0 {
			s.decodes(step)
		}
	}
	if len(step.Works) == 0 {
		return
	}
	for i, w := range step.Works {
		q := s.works[i]
		step.Tokens += w.N
		step.At = max(step.At, q.runnable)
		switch {
		case q.KV == engine.Blocking && q.computed == 0:
			step.Kind = engine.Receive
		case w.Prompt && step.Kind != engine.Receive:
			step.Kind = engine.Mixed
		}
	}
	if step.Kind == engine.Mixed && s.cfg.Policy == PrefillFirst {
		step.Kind = engine.Prefill
	}
	if now-step.At > engine.MaxLag {
		step.At = now
	}
	for _, w := range step.Works {
		if w.Prompt && w.Seq.Launched == 0 {
			w.Seq.Launched = step.At
		}
	}
	s.step = step
	s.ready.Launch = step

	// The outputs of the step before leave once this one is launched, which takes
	// the CPU a while unless it is a captured graph.
	leave := step.At
	if step.Kind != engine.Decode {
		leave += s.cfg.OutputDelay
	}
	s.out = slices.DeleteFunc(s.out, func(o engine.Output) bool {
		if o.Seq.AtOnce {
			return false
		}
		s.delayed = append(s.delayed, delayed{leave, o})
		return true
	})
}

// flush lets outputs leave: those whose delay is over and no other's before them is
// not, those that wait for nothing, and all of them if there is no step to wait for,
// under way or about to be. One that is held back until notBefore is about to be: in
// the published system outputs wait for it (see V0Costs).
func (s *Scheduler) flush(now, notBefore time.Duration) {
	idle := s.step == nil && (now >= notBefore || len(s.waiting)+len(s.running) == 0)
	n := 0
	for n < len(s.delayed) && (idle || s.delayed[n].at <= now) {
		s.ready.Outputs = append(s.ready.Outputs, s.delayed[n].Output)
		n++
	}
	s.delayed = slices.Delete(s.delayed, 0, n)
	s.out = slices.DeleteFunc(s.out, func(o engine.Output) bool {
		if !idle && !o.Seq.AtOnce {
			return false
		}
		s.ready.Outputs = append(s.ready.Outputs, o)
		return true
	})
}

// work adds a sequence's part of a step, from where its KV ends.
func (s *Scheduler) work(step *engine.Step, q *sequence, w engine.Work) {
	w.Seq, w.From = &q.Sequence, q.computed
	step.Works = append(step.Works, w)
	s.works = append(s.works, q)
}

// decodes adds every running sequence that has room for its next token. Where
// the pool has none, the sequences admitted last are preempted, one by one:
// prompts computed in part, then running ones.
func (s *Scheduler) decodes(step *engine.Step) {
	for i := 0; i < len(s.running) && len(step.Works) < s.cfg.MaxNumSeqs; i++ {
		q := s.running[i]
		for !q.Table.Grow(s.cfg.Pool, len(q.Tokens())) {
			s.starved = true
			if s.evictPrompt() {
				continue
			}
			victim := s.running[len(s.running)-1]
			s.preempt(victim)
			if victim == q {
				return
			}
		}
		s.work(step, q, engine.Work{N: len(q.Tokens()) - q.computed, Sample: true})
	}
}

// evictPrompt takes the blocks of the last prompt that is computed in part, if
// there is one. Were it left with them, a sequence preempted later would go before
// it in the queue and wait for blocks that only it could give back.
func (s *Scheduler) evictPrompt() bool {
	for _, q := range slices.Backward(s.waiting) {
		if len(q.Table.Refs()) > 0 {
			s.evict(q)
			s.preemptions++
			return true
		}
	}
	return false
}

// preempt takes a running sequence's blocks away. It will recompute its tokens,
// prompt and output, before any prompt that came later.
func (s *Scheduler) preempt(q *sequence) {
	s.running = remove(s.running, q)
	s.evict(q)
	q.KV = engine.Compute
	q.where = inWaiting
	s.waiting = slices.Insert(s.waiting, 0, q)
	s.preemptions++
}

// prompts adds waiting prompts, in order, up to budget tokens. The first that
// gets no blocks holds back those behind it: nothing overtakes, nothing starves.
func (s *Scheduler) prompts(step *engine.Step, budget int) {
	admitted := 0
	for _, q := range s.waiting {
		if q.KV == engine.Await {
			break
		}
		if budget <= 0 {
			break
		}
		if len(s.running)+len(s.pending)+admitted >= s.cfg.MaxNumSeqs || len(step.Works) >= s.cfg.MaxNumSeqs {
			s.starved = true
			break
		}
		if len(step.Works) > 0 && (q.KV == engine.Blocking) != (s.works[0].KV == engine.Blocking && s.works[0].computed == 0) {
			break // a step either fetches or computes
		}
		if len(q.Table.Refs()) == 0 && !s.allocate(q) {
			s.starved = true
			break
		}
		left := len(q.Tokens()) - q.computed
		n := min(left, budget)
		if n < left && s.cfg.Policy == PrefillFirst {
			s.evict(q) // until there is room in a step
			break
		}
		s.work(step, q, engine.Work{N: n, Prompt: true, Sample: n == left})
		budget -= n
		admitted++
	}
}

// allocate takes blocks for all of a sequence's tokens, starting with what the
// prefix cache has. At least one token is left to compute: the first output is
// drawn from it.
func (s *Scheduler) allocate(q *sequence) bool {
	now := refusal{s.cfg.Pool.Free(), s.cfg.Pool.Prefixes()}
	if q.refused.prefixes == now.prefixes && now.free <= q.refused.free {
		return false
	}
	if s.fits(q) {
		q.refused = refusal{}
		return true
	}
	q.refused = now
	return false
}

// fits takes the blocks if the pool has them.
func (s *Scheduler) fits(q *sequence) bool {
	need := (len(q.Tokens())+s.cfg.Pool.BlockTokens()-1)/s.cfg.Pool.BlockTokens() - s.cfg.Pool.Lookup(q.hashes)
	if s.cfg.Pool.Free() < need {
		return false
	}
	var refs []kvcache.Ref
	if q.KV != engine.Blocking && len(q.hashes) > 0 {
		usable := q.hashes[:min(len(q.hashes), (len(q.Tokens())-1)/s.cfg.Pool.BlockTokens())]
		refs = s.cfg.Pool.Match(usable)
	}
	if err := q.Adopt(s.cfg.Pool, refs); err != nil {
		panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
	}
	q.computed = q.Cached()
	if !s.room(q) || !q.Table.Grow(s.cfg.Pool, len(q.Tokens())) {
		s.evict(q)
		return false
	}
	if s.cfg.PrefixCaching && q.KV != engine.Blocking && !q.queried {
		s.cfg.Pool.Queried(len(q.Tokens()), q.Cached())
		q.queried = true
	}
	return true
}

// evict gives a sequence's blocks back, and with them what was computed.
func (s *Scheduler) evict(q *sequence) {
	s.free(q)
	q.computed, q.committed = 0, 0
}

// room keeps 1 % of the pool for the running sequences to grow into, as vLLM
// does: a prompt admitted into the last blocks would be preempted at once.
func (s *Scheduler) room(q *sequence) bool {
	if len(s.running)+len(s.pending) == 0 {
		return true
	}
	need := (len(q.Tokens())+s.cfg.Pool.BlockTokens()-1)/s.cfg.Pool.BlockTokens() - len(q.Table.Refs())
	return s.cfg.Pool.Free()-need >= s.cfg.Pool.Total()/100
}

// done applies the end of the step under way.
func (s *Scheduler) done(ev engine.Done) {
	step := s.step
	if step == nil {
		panic("batching: Done without a step under way")
	}
	s.step = nil
	s.ended = ev.At
	tokens := ev.Tokens
	for i, w := range step.Works {
		q := s.works[i]
		cancelled := q.where == finished
		failed := slices.Contains(ev.Failed, q.ID)
		if w.Sample && !failed {
			t := tokens[0]
			tokens = tokens[1:]
			if cancelled {
				continue
			}
			q.computed = w.From + w.N
			if q.Computed == 0 && w.Prompt {
				q.Computed = ev.At
			}
			s.commit(q)
			q.Append(t)
			s.sampled(q, t)
			continue
		}
		switch {
		case cancelled:
		case failed:
			s.waiting = remove(s.waiting, q)
			s.end(q)
		default: // a chunk; more to come
			q.computed = w.From + w.N
			s.commit(q)
		}
	}
	for _, q := range s.release {
		s.free(q)
	}
	s.release = s.release[:0]
}

// sampled moves a sequence on after a token was drawn for it.
func (s *Scheduler) sampled(q *sequence, t uint32) {
	last := q.Output() >= q.MaxTokens
	s.out = append(s.out, engine.Output{Seq: &q.Sequence, Token: t, Position: q.Output() - 1, Last: last})
	if q.where == inWaiting {
		s.waiting = remove(s.waiting, q)
		if !last {
			q.where = inRunning
			s.running = append(s.running, q)
		}
	}
	if !last {
		return
	}
	s.running = remove(s.running, q)
	if q.Keep {
		q.where = kept
		return
	}
	s.end(q)
}

// commit offers the full prompt blocks computed so far to the prefix cache.
func (s *Scheduler) commit(q *sequence) {
	if len(q.hashes) == 0 || q.KV == engine.Blocking {
		return
	}
	full := min(q.computed/s.cfg.Pool.BlockTokens(), len(q.hashes))
	refs := q.Table.Refs()
	for i := max(q.committed, q.Cached()/s.cfg.Pool.BlockTokens()); i < full; i++ {
		if err := s.cfg.Pool.Commit(refs[i], q.hashes[i]); err != nil {
			panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
		}
	}
	q.committed = max(q.committed, full)
}
