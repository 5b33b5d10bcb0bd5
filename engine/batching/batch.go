package batching

import (
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// launch forms the next step: what the policy says, unless the first prompts that wait are
// fetched inside a step.
func (s *Scheduler) launch(now, notBefore time.Duration) {
	step := &s.spare
	s.works = s.works[:0]
	*step = engine.Step{Works: step.Works[:0], At: max(s.ended, s.relief, notBefore)}
	s.starved = false
	s.adapters.gather(s)
	s.prompts(step, max(s.cfg.MaxBatchedTokens, s.cfg.MaxModelLen), engine.Blocking, false)
	kind := engine.Receive
	if len(step.Works) == 0 {
		s.form(step, now)
		kind = s.policy.kind()
	}
	s.lead()
	if len(step.Works) == 0 {
		return
	}
	for i, w := range step.Works {
		step.Tokens += w.N
		step.At = max(step.At, s.works[i].runnable)
		if w.Prompt {
			step.Kind = kind
		}
	}
	if now-step.At > engine.MaxLag {
		step.At = now
	}
	s.adapters.prepare(step)
	for _, w := range step.Works {
		if w.Prompt {
			w.Seq.Launch(step.At)
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

// work adds n tokens of a sequence to a step, from where its KV ends.
func (s *Scheduler) work(step *engine.Step, q *sequence, n int) {
	step.Works = append(step.Works, engine.Work{Seq: &q.Sequence, From: q.Held, N: n, Prompt: q.prompt, Sample: q.Held+n == q.Len()})
	s.works = append(s.works, q)
}

// evictPrompt takes the blocks of the last prompt that waits and is computed in part, if
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
// prompt and output, when its turn comes at place i of the queue.
func (s *Scheduler) preempt(q *sequence, i int) {
	s.running = remove(s.running, q)
	s.evict(q)
	q.KV = engine.Compute
	q.where, q.prompt = inWaiting, true
	s.count(q)
	s.waiting = slices.Insert(s.waiting, i, q)
	s.preemptions++
}

// placed is how many sequences have a place in the batch that is being formed: of those that run all
// that it may have.
func (s *Scheduler) placed() int {
	n := len(s.pending)
	if !s.adapters.turning {
		return n + len(s.running)
	}
	for _, q := range s.running {
		if s.adapters.serves(q) {
			n++
		}
	}
	return n
}

// full reports whether a prompt more would be one too many for the batch, beside those that
// run and those of the step that do not yet.
func (s *Scheduler) full(step *engine.Step, admitted int) bool {
	if s.placed()+admitted < s.cfg.MaxNumSeqs && len(step.Works) < s.cfg.MaxNumSeqs {
		return false
	}
	s.starved = true
	return true
}

// prompts adds waiting prompts of one source, in order, up to budget tokens; the last is cut
// short, or left out. The first that gets no blocks holds back those behind it; only one whose
// adapter has no slot is overtaken.
func (s *Scheduler) prompts(step *engine.Step, budget int, source engine.KVSource, cut bool) {
	admitted := 0
	for _, q := range s.waiting {
		if q.KV != source || budget <= 0 || s.full(step, admitted) {
			break
		}
		begun := len(q.Table.Refs()) > 0
		if !s.admits(q) {
			if begun {
				admitted++ // it keeps its place in the batch
			}
			continue
		}
		if !begun && !s.allocate(q) {
			s.starved = true
			break
		}
		admitted++
		if q.loading {
			continue
		}
		left := q.Len() - q.Held
		n := min(left, budget)
		if n < left && !cut {
			s.evict(q) // until there is room in a step
			break
		}
		s.work(step, q, n)
		budget -= n
	}
}

// allocate takes blocks for all of a sequence's tokens, starting with what the
// prefix cache has. At least one token is left to compute: the first output is
// drawn from it.
func (s *Scheduler) allocate(q *sequence) bool {
	now := refusal{s.cfg.Pool.Free(), s.cfg.Pool.Prefixes(), len(s.running)}
	if q.refused.prefixes == now.prefixes && now.free <= q.refused.free && now.running >= q.refused.running {
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
	room := q.Len()
	if q.KV == engine.Await {
		room += q.Reserve
	}
	need := (room+s.cfg.Pool.BlockTokens()-1)/s.cfg.Pool.BlockTokens() - s.cfg.Pool.Lookup(q.hashes)
	if s.cfg.Pool.Free() < need {
		return false
	}
	var refs []kvcache.Ref
	usable := (q.Len() - 1) / s.cfg.Pool.BlockTokens()
	if q.KV != engine.Blocking && len(q.hashes) > 0 {
		refs = s.cfg.Pool.Match(q.hashes[:min(q.shared, usable)])
	}
	if err := q.Adopt(s.cfg.Pool, refs); err != nil {
		panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
	}
	q.Held, q.committed = q.Cached(), len(refs)
	var below kvcache.Found
	if q.KV == engine.Compute {
		below = s.offload.tiers.Find(q.hashes[:min(len(q.hashes), usable)], len(refs))
	}
	need = s.missing(q, room) + s.policy.reserve(s, q)
	piecemeal := s.policy.piecemeal() && q.KV == engine.Compute && below.Blocks == 0
	if s.cfg.Pool.Free() < need || !piecemeal && !q.Table.Grow(s.cfg.Pool, room) {
		s.evict(q)
		return false
	}
	s.load(q, len(refs), below)
	s.count(q)
	if s.cfg.PrefixCaching && q.KV != engine.Blocking && !q.queried {
		s.cfg.Pool.Queried(q.Len(), len(refs)*s.cfg.Pool.BlockTokens())
		q.queried = true
	}
	return true
}

// evict gives a sequence's blocks back, and with them what was computed.
func (s *Scheduler) evict(q *sequence) {
	s.free(q)
	q.Held, q.committed = 0, 0
	s.count(q)
}

// missing is how many blocks a sequence lacks for so many tokens.
func (s *Scheduler) missing(q *sequence, tokens int) int {
	return max((tokens+s.cfg.Pool.BlockTokens()-1)/s.cfg.Pool.BlockTokens()-len(q.Table.Refs()), 0)
}

// done applies the end of the step under way.
func (s *Scheduler) done(ev engine.Done) {
	step := s.step
	if step == nil {
		panic("batching: Done without a step under way")
	}
	s.step = nil
	s.ended = ev.At
	s.adapters.done(step, ev.At-step.At)
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
			q.Held = w.From + w.N
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
			q.Held = w.From + w.N
			s.commit(q)
			s.count(q)
		}
	}
	s.spill(ev.At)
	for _, q := range s.release {
		s.free(q)
	}
	s.release = s.release[:0]
	s.works = s.works[:0]
}

// sampled moves a sequence on after a token was drawn for it.
func (s *Scheduler) sampled(q *sequence, t uint32) {
	last := q.Output() >= q.MaxTokens
	s.out = append(s.out, engine.Output{Seq: &q.Sequence, Token: t, Position: q.Output() - 1, Last: last})
	q.prompt = false
	s.count(q)
	if q.where == inWaiting {
		s.waiting = remove(s.waiting, q)
		if !last {
			q.where = inRunning
			s.running = append(s.running, q)
		}
	}
	if !last {
		if q.suspend {
			s.suspended(q)
		}
		return
	}
	s.running = remove(s.running, q)
	if q.Keep {
		q.where = kept
		return
	}
	s.end(q)
}

// commit offers the full prompt blocks computed so far to the prefix cache, and all full blocks to
// the tiers below it.
func (s *Scheduler) commit(q *sequence) {
	if !s.cfg.PrefixCaching || q.KV == engine.Blocking {
		return
	}
	full := q.Held / s.cfg.Pool.BlockTokens()
	if s.offload.tiers == nil {
		full = min(full, q.shared)
	}
	for i := len(q.hashes); i < full; i++ {
		q.hashes = append(q.hashes, kvcache.OwnHash(q.ID, i))
	}
	if shared := min(full, q.shared); q.committed < shared {
		if err := s.cfg.Pool.Commit(q.Table.Refs()[q.committed:shared], q.hashes[q.committed:shared]); err != nil {
			panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
		}
	}
	if q.committed < full {
		s.store(q, q.committed, full)
		q.committed = full
	}
}
