package batching

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/enginetest"
	"kvferry/kvcache"
)

// TestScheduler: the scheduler does what every one must, under each policy, and keeps its
// own bounds meanwhile: no token waits longer than the output delay or a launch that is
// held back, and no block is lost or held twice.
func TestScheduler(t *testing.T) {
	for _, policy := range []Policy{PrefillFirst, Chunked, V1, SGLang} {
		var tiers kvcache.TierStats
		t.Run(policy.String(), func(t *testing.T) {
			sum := enginetest.TestScheduler(t, func(t *testing.T, setup enginetest.Setup) enginetest.Subject {
				rng := setup.Rand
				s, err := NewScheduler(Config{
					Policy: policy, Pool: setup.Pool, MaxModelLen: setup.MaxModelLen, MaxNumSeqs: setup.MaxNumSeqs, PrefixCaching: setup.PrefixCaching,
					MaxBatchedTokens: 40 + rng.IntN(20), ChunkTokens: 1 + rng.IntN(16),
					OutputDelay:       time.Duration(rng.Int64N(int64(4 * time.Millisecond))),
					LongPrefillTokens: rng.IntN(2) * rng.IntN(20), LongestPrefixFirst: rng.IntN(2) == 0, Conservativeness: rng.Float64(),
					PrefillDecodeInterval: rng.IntN(2) * rng.IntN(4),
					LoRA:                  engine.LoRA{MaxLoRAs: rng.IntN(3), MaxCPULoRAs: rng.IntN(2) * 3, Merged: engine.Merging(engine.Mergings()[min(rng.IntN(4), 2)]), AdapterMS: rng.Float64(), SwitchMS: float64(setup.Seed % 3)},
				})
				if err != nil {
					t.Fatal(err)
				}
				if setup.PrefixCaching {
					s.offload.tiers = kvcache.NewTiers(rng.IntN(3)*rng.IntN(40), rng.IntN(2)*rng.IntN(60))
				}
				t.Cleanup(func() { add(&tiers, s.offload.tiers.Stats()) })
				switch policy {
				case V1:
					s.cfg.MaxBatchedTokens = 1 + rng.IntN(30)
				case SGLang:
					s.cfg.ChunkTokens *= rng.IntN(2)
					s.cfg.MaxBatchedTokens -= 30
				}
				return enginetest.Subject{Scheduler: s, Inspect: s.inspect}
			})
			t.Logf("%+v", sum)
			if sum.Preemptions == 0 || sum.PrefixHits == 0 {
				t.Errorf("the load does not exercise preemption (%d) and the prefix cache (%d)", sum.Preemptions, sum.PrefixHits)
			}
		})
		t.Logf("%+v", tiers)
		if tiers.HostHits == 0 || tiers.DiskHits == 0 || tiers.Loaded <= tiers.Read || tiers.Stored <= tiers.Written || tiers.Read == 0 || tiers.Written == 0 {
			t.Errorf("the load does not exercise the tiers: %+v", tiers)
		}
	}
}

func add(sum *kvcache.TierStats, s kvcache.TierStats) {
	sum.HostHits += s.HostHits
	sum.DiskHits += s.DiskHits
	sum.Loaded += s.Loaded
	sum.Stored += s.Stored
	sum.Read += s.Read
	sum.Written += s.Written
}

// inspect says what is wrong with the scheduler's state.
func (s *Scheduler) inspect(now, gate time.Duration) error {
	for _, o := range s.out {
		if o.Seq.AtOnce || s.step != nil || now >= gate {
			return fmt.Errorf("request %d: token %d waits for a launch, at once: %v, gate %v", o.Seq.ID, o.Position, o.Seq.AtOnce, gate)
		}
	}
	for _, o := range s.delayed {
		if o.Seq.AtOnce || s.delayed[0].at <= now || o.at > now+s.cfg.OutputDelay {
			return fmt.Errorf("request %d: token %d is delayed until %v, at once: %v", o.Seq.ID, o.Position, o.at, o.Seq.AtOnce)
		}
	}
	if s.step != nil {
		if err := s.inspectStep(); err != nil {
			return err
		}
	}
	places := map[string]int{} // where one may be merged each adapter has a batch of its own
	for _, q := range slices.Concat(s.running, s.pending) {
		batch := ""
		if l := s.cfg.LoRA.Merged; l == engine.MergeAlways || l == engine.MergeDynamic {
			batch = q.Adapter
		}
		if places[batch]++; places[batch] > s.cfg.MaxNumSeqs {
			return fmt.Errorf("%d sequences of %q are running or pending, at most %d", places[batch], batch, s.cfg.MaxNumSeqs)
		}
	}
	waiting := 0
	for _, list := range [...][]*sequence{s.future, s.waiting, s.pending, s.running} {
		for _, q := range list {
			if s.seqs[q.ID] != q {
				return fmt.Errorf("request %d is listed and forgotten", q.ID)
			}
			if q.prompt && (q.where != inPending || q.loading) {
				waiting += q.Len() - q.Held
			}
		}
	}
	if got := s.Load().WaitingTokens; got != waiting {
		return fmt.Errorf("%d prompt tokens wait, the load says %d", waiting, got)
	}
	return s.conserve()
}

func (s *Scheduler) inspectStep() error {
	for i, w := range s.step.Works {
		if q := s.works[i]; w.Seq != &q.Sequence || w.From != q.Held {
			return fmt.Errorf("work %+v of request %d with %d tokens computed", w, q.ID, q.Held)
		}
	}
	limit := s.cfg.MaxBatchedTokens
	switch prompts := s.step.Kind == engine.Prefill; {
	case s.step.Kind == engine.Receive:
		limit = max(limit, s.cfg.MaxModelLen)
	case s.cfg.Policy == Chunked:
		limit = max(s.cfg.ChunkTokens, len(s.works)) // decodes go in any case
	case s.cfg.Policy == SGLang && !prompts:
		limit = len(s.works)
	case s.cfg.Policy == SGLang && s.cfg.ChunkTokens > 0:
		limit = s.cfg.ChunkTokens
	case s.cfg.Policy == SGLang && len(s.works) == 1:
		limit = s.cfg.MaxModelLen
	}
	if err := s.inspectKind(); err != nil {
		return err
	}
	if err := s.inspectAdapters(); err != nil {
		return err
	}
	if s.step.Tokens > limit || len(s.works) > s.cfg.MaxNumSeqs {
		return fmt.Errorf("step of %d sequences, at most %d, and %d tokens, at most %d", len(s.works), s.cfg.MaxNumSeqs, s.step.Tokens, limit)
	}
	return nil
}

// inspectKind: prompts and decodes share a step under Chunked and V1 only, and whole prompts
// are in one step under PrefillFirst.
func (s *Scheduler) inspectKind() error {
	prompts, cut := 0, 0
	for _, w := range s.step.Works {
		if w.Prompt {
			prompts++
		}
		if !w.Sample {
			cut++
		}
	}
	mixes := s.cfg.Policy == Chunked || s.cfg.Policy == V1
	kind := engine.Decode
	switch {
	case prompts == 0:
	case s.step.Kind == engine.Receive:
		kind = engine.Receive
	case mixes:
		kind = engine.Mixed
	default:
		kind = engine.Prefill
	}
	if s.step.Kind != kind || kind != engine.Mixed && prompts > 0 && prompts < len(s.works) || s.cfg.Policy == PrefillFirst && cut > 0 || s.cfg.Policy == SGLang && cut > 1 {
		return fmt.Errorf("%v step of %d sequences with %d prompts, %d of them in part", s.step.Kind, len(s.works), prompts, cut)
	}
	return nil
}

// inspectAdapters: a step has no more adapters than there are slots, one alone if it is merged, and all
// of them are in slots.
func (s *Scheduler) inspectAdapters() error {
	if s.step.Kind == engine.Receive {
		return nil
	}
	used, base := map[string]bool{}, false
	for _, w := range s.step.Works {
		if base = base || w.Seq.Adapter == ""; w.Seq.Adapter != "" {
			used[w.Seq.Adapter] = true
		}
	}
	l, there := s.cfg.LoRA, s.Load().Adapters
	merged := s.adapters.merged
	alone := l.Merged == engine.MergeAlways || merged != ""
	if l.MaxLoRAs > 0 && (len(there) > l.MaxLoRAs || !alone && len(used) > l.MaxLoRAs) || alone && (len(used) > 1 || len(used) > 0 && base || len(used) > 0 && !used[merged]) {
		return fmt.Errorf("step with adapters %v and without: %v, in slots %v, of %+v", used, base, there, l)
	}
	for name := range used {
		if !slices.Contains(there, name) {
			return fmt.Errorf("adapter %s of the step is not in slots %v", name, there)
		}
	}
	if n := len(s.adapters.host.used); l.MaxCPULoRAs > 0 && n > l.MaxCPULoRAs {
		return fmt.Errorf("%d adapters in host memory, at most %d", n, l.MaxCPULoRAs)
	}
	return nil
}

// conserve checks that the pool's blocks are those of the sequences, and shared only
// through the prefix cache.
func (s *Scheduler) conserve() error {
	holders := map[kvcache.Ref]int{}
	count := func(q *sequence) error {
		for _, r := range q.Table.Refs() {
			holders[r]++
			if !s.cfg.Pool.Valid(r) {
				return fmt.Errorf("request %d holds %v, which is not held", q.ID, r)
			}
		}
		return nil
	}
	for _, q := range s.seqs {
		if err := count(q); err != nil {
			return err
		}
	}
	for _, q := range s.release {
		if err := count(q); err != nil {
			return err
		}
	}
	for _, r := range s.offload.refs {
		holders[r]++
	}
	for _, c := range s.offload.copies {
		for _, r := range c.refs {
			holders[r]++
		}
	}
	if len(holders) != s.cfg.Pool.Used() {
		return fmt.Errorf("%d blocks used, sequences hold %d", s.cfg.Pool.Used(), len(holders))
	}
	for r, n := range holders {
		if n > 1 && !s.cfg.PrefixCaching {
			return fmt.Errorf("%v is held %d times", r, n)
		}
	}
	return nil
}
