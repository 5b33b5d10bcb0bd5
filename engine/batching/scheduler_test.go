package batching

import (
	"strings"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// TestReserve: a prompt leaves 1 % of the pool for the sequences that run, or are
// about to, to grow into. Where there is none it may have all.
func TestReserve(t *testing.T) {
	const blocks, block, reserve = 9900, 4, 99
	prompt := func(blocks int) []kvcache.Token { return make([]kvcache.Token, (blocks-1)*block+1) }
	for _, c := range []struct {
		before []engine.KVSource // of sequences of 2 blocks that are there before
		cached bool              // they are the beginning of the prompt
		need   int               // blocks of the prompt
		taken  bool
	}{
		{need: blocks, taken: true},
		{before: []engine.KVSource{engine.Compute}, need: blocks - 2 - reserve, taken: true},
		{before: []engine.KVSource{engine.Compute}, need: blocks - 2 - reserve + 1},
		{before: []engine.KVSource{engine.Await}, need: blocks - 2 - reserve, taken: true},
		{before: []engine.KVSource{engine.Await}, need: blocks - 2 - reserve + 1},
		{before: []engine.KVSource{engine.Await, engine.Compute}, need: blocks - 4 - reserve, taken: true},
		{before: []engine.KVSource{engine.Await, engine.Compute}, need: blocks - 4 - reserve + 1},
		// All but the last block of those before are shared.
		{before: []engine.KVSource{engine.Compute}, cached: true, need: blocks - 1 - reserve, taken: true},
		{before: []engine.KVSource{engine.Compute}, cached: true, need: blocks - 1 - reserve + 1},
	} {
		s, err := NewScheduler(Config{
			Pool: kvcache.NewPool(blocks, block, c.cached), MaxModelLen: blocks * block, PrefixCaching: c.cached,
			MaxNumSeqs: 8, MaxBatchedTokens: blocks * block, ChunkTokens: 8,
		})
		if err != nil {
			t.Fatal(err)
		}
		var events []engine.Event
		for i, source := range c.before {
			rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: uint64(1 + i), Prompt: prompt(2), MaxTokens: 2, KV: source}})
			if source == engine.Compute {
				events = append(events, engine.Done{Tokens: generate(rd.Launch, nil, vocab)})
			}
		}
		rd := s.Step(0, 0, append(events, engine.Add{Request: engine.Request{ID: 9, Prompt: prompt(c.need), MaxTokens: 1}})...)
		if taken := rd.Launch != nil && rd.Launch.Kind == engine.Prefill; taken != c.taken {
			t.Errorf("%+v: launched %v", c, rd.Launch)
		}
	}
}

// TestQueries: a prompt is asked of the prefix cache once, all of its tokens, when it gets
// blocks: not each time that it is looked at.
func TestQueries(t *testing.T) {
	pool := kvcache.NewPool(4, 4, true)
	s, err := NewScheduler(Config{Pool: pool, MaxModelLen: 16, MaxNumSeqs: 8, MaxBatchedTokens: 16, ChunkTokens: 8, PrefixCaching: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	s.Step(now, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 9), MaxTokens: 4}}, engine.Add{Request: engine.Request{ID: 2, Prompt: []kvcache.Token{1, 2, 3, 4, 5}, MaxTokens: 1}})
	for s.Current() != nil {
		now++
		s.Step(now, 0, engine.Done{At: now, Tokens: generate(s.Current(), nil, vocab)})
		// 1 asks for 9 tokens; then 2, which waits for two blocks, for 5.
		if q := pool.Stats().PrefixQueries; now < 4 && q != 9 || q > 14 {
			t.Errorf("%d tokens were asked for after step %d", q, now)
		}
	}
	if q := pool.Stats().PrefixQueries; q != 14 {
		t.Errorf("%d tokens were asked for, want 14", q)
	}
}

// TestQueriesOfPreempted: what is computed again is not asked for again, and a prompt shorter than a
// block is asked for, though it cannot be found.
func TestQueriesOfPreempted(t *testing.T) {
	pool := kvcache.NewPool(4, 4, true)
	s, err := NewScheduler(Config{Pool: pool, MaxModelLen: 16, MaxNumSeqs: 8, MaxBatchedTokens: 16, ChunkTokens: 8, PrefixCaching: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Duration(0)
	s.Step(now, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: []kvcache.Token{1, 2, 3, 4, 5}, MaxTokens: 8}}, engine.Add{Request: engine.Request{ID: 2, Prompt: []kvcache.Token{6, 7, 8}, MaxTokens: 8}})
	for s.Current() != nil {
		now++
		s.Step(now, 0, engine.Done{At: now, Tokens: generate(s.Current(), nil, vocab)})
	}
	if n := s.preemptions; n == 0 {
		t.Fatal("nothing was preempted")
	}
	if st := pool.Stats(); st.PrefixQueries != 8 || st.PrefixHits != 0 {
		t.Errorf("%d tokens were asked for and %d found, want 8 and 0", st.PrefixQueries, st.PrefixHits)
	}
}

// TestGivenPrefix: hashes that come with a request are taken for its prompt's.
func TestGivenPrefix(t *testing.T) {
	s, err := NewScheduler(Config{Pool: kvcache.NewPool(9, 4, true), MaxModelLen: 16, MaxNumSeqs: 8, MaxBatchedTokens: 16, ChunkTokens: 8, PrefixCaching: true})
	if err != nil {
		t.Fatal(err)
	}
	given := kvcache.PrefixHashes(kvcache.Hash{}, []kvcache.Token{9, 9, 9, 9}, 4)
	rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 5), Prefix: given, MaxTokens: 1}})
	rd = s.Step(1, 0, engine.Done{At: 1, Tokens: generate(rd.Launch, nil, vocab)}, engine.Add{Request: engine.Request{ID: 2, Prompt: []kvcache.Token{1, 2, 3, 4, 5}, Prefix: given, MaxTokens: 1}})
	if rd.Launch == nil || rd.Launch.Works[0].From != 4 {
		t.Errorf("launched %+v, want the block of the first prompt found", rd.Launch)
	}
}

// TestConfigFaults: each fault is named.
func TestConfigFaults(t *testing.T) {
	p, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	if err := ConfigOf(p, PrefillFirst, kvcache.NewPool(4, 16, false)).Validate(); err != nil {
		t.Error(err)
	}
	good := ConfigOf(p, Chunked, kvcache.NewPool(4, 16, false))
	if good.Policy != Chunked || good.OutputDelay != 18_690*time.Microsecond {
		t.Errorf("%+v", good)
	}
	for want, spoil := range map[string]func(*Config){
		"Pool: none given":         func(c *Config) { c.Pool = nil },
		"MaxModelLen: 0: ":         func(c *Config) { c.MaxModelLen = 0 },
		"MaxNumSeqs: 0: ":          func(c *Config) { c.MaxNumSeqs = 0 },
		"ChunkTokens: 0: ":         func(c *Config) { c.ChunkTokens = 0 },
		"MaxBatchedTokens: 0: ":    func(c *Config) { c.MaxBatchedTokens = 0 },
		"MaxBatchedTokens: 9999: ": func(c *Config) { c.Policy, c.MaxBatchedTokens = PrefillFirst, 9999 },
	} {
		c := good
		spoil(&c)
		if _, err := NewScheduler(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}
