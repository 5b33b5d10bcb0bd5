package connector

import (
	"testing"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/engine/enginetest"
	"kvferry/kvcache"
)

// A schedulerOf makes a node's scheduler over its blocks.
type schedulerOf func(t *testing.T, prof *engine.Profile, pool *kvcache.Pool, caching bool) engine.Scheduler

func newBatching(t *testing.T, prof *engine.Profile, pool *kvcache.Pool, caching bool) engine.Scheduler {
	return newTiered(t, prof, pool, caching, nil)
}

func newTiered(t *testing.T, prof *engine.Profile, pool *kvcache.Pool, caching bool, tiers *kvcache.Tiers) engine.Scheduler {
	cfg := batching.ConfigOf(prof, false, pool)
	cfg.PrefixCaching, cfg.Tiers = caching, tiers
	s, err := batching.NewScheduler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestOtherScheduler: every hand-off works over a scheduler that shares nothing with
// package batching, and what TestPair promises holds.
func TestOtherScheduler(t *testing.T) {
	var sum tally
	for seed := range uint64(120) {
		x := newPairOf(t, seed, func(_ *testing.T, prof *engine.Profile, pool *kvcache.Pool, _ bool) engine.Scheduler {
			return enginetest.NewSerial(pool, prof.MaxModelLen)
		})
		x.play()
		sum.add(x.tally)
	}
	t.Logf("%+v", sum)
	if sum.Well == 0 || sum.Broken == 0 || sum.Cancelled == 0 {
		t.Error("the load does not exercise transfers that end well, that fail, and requests that are cancelled")
	}
}
