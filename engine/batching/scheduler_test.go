package batching

import (
	"math"
	"slices"
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
	if err := ConfigOf(p, false, kvcache.NewPool(4, 16, false)).Validate(); err != nil {
		t.Error(err)
	}
	good := ConfigOf(p, true, kvcache.NewPool(4, 16, false))
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

// TestCheapest: retracted first is the sequence with the least output, of those the one with
// the longest prompt, of those the last.
func TestCheapest(t *testing.T) {
	sequenceOf := func(prompt, output int) *sequence {
		q := &sequence{Sequence: *engine.NewSequence(engine.Request{Prompt: make([]kvcache.Token, prompt)})}
		for range output {
			q.Append(1)
		}
		return q
	}
	running := []*sequence{sequenceOf(3, 5), sequenceOf(9, 2), sequenceOf(4, 1), sequenceOf(6, 1), sequenceOf(6, 1), sequenceOf(5, 1)}
	if q := cheapest(running); q != running[4] {
		t.Errorf("sequence %d goes first, want 4", slices.Index(running, q))
	}
}

// TestNewTokenRatio: SGLang's estimate falls from 0.7 by a six hundredth of the way to 0.098
// with each step of decodes, begins anew when nothing runs, and is estimated from what was
// generated when sequences were retracted.
func TestNewTokenRatio(t *testing.T) {
	pool := kvcache.NewPool(1000, 4, false)
	s, err := NewScheduler(Config{Policy: SGLang, Pool: pool, MaxModelLen: 2000, MaxNumSeqs: 8, MaxBatchedTokens: 2000, Conservativeness: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := s.policy.(*sglang)
	want := func(what string, ratio float64) {
		t.Helper()
		if math.Abs(p.ratio-ratio) > 1e-9 {
			t.Errorf("%s it is %v, want %v", what, p.ratio, ratio)
		}
	}
	now := time.Duration(0)
	s.Step(now, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 5), MaxTokens: 900}})
	step := func() {
		now++
		s.Step(now, 0, engine.Done{At: now, Tokens: generate(s.Current(), nil, vocab)})
	}
	want("with the prompt", 0.7)
	step()
	want("after a step of decodes", 0.7-0.602/600)
	for range 700 {
		step()
	}
	want("after 700", 0.098)
	p.estimate(s)
	want("of a sequence with 701 of 900 tokens, after a retraction,", 721./901)
	s.Step(now, 0, engine.Cancel{ID: 1})
	step()
	want("when nothing runs", 0.7)
}

// TestRefusedUntilSomebodyLeaves: where the pool has no more than before, a prompt is tried
// again when fewer sequences run, since less is kept for them.
func TestRefusedUntilSomebodyLeaves(t *testing.T) {
	pool := kvcache.NewPool(10, 4, false)
	s, err := NewScheduler(Config{Policy: SGLang, Pool: pool, MaxModelLen: 40, MaxNumSeqs: 8, MaxBatchedTokens: 40, Conservativeness: 1})
	if err != nil {
		t.Fatal(err)
	}
	rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: make([]kvcache.Token, 18), MaxTokens: 3, Keep: true}})
	rd = s.Step(1, 0, engine.Done{At: 1, Tokens: generate(rd.Launch, nil, vocab)}, engine.Add{Request: engine.Request{ID: 2, Prompt: make([]kvcache.Token, 14), MaxTokens: 3}})
	for now := time.Duration(2); now < 4; now++ {
		if rd.Launch.Kind != engine.Decode {
			t.Fatalf("launched %v while 1 runs", rd.Launch)
		}
		rd = s.Step(now, 0, engine.Done{At: now, Tokens: generate(rd.Launch, nil, vocab)})
	}
	if rd.Launch == nil || rd.Launch.Kind != engine.Prefill || pool.Free() != 1 {
		t.Errorf("launched %v with %d blocks free, though 1 has ended, whose blocks are kept", rd.Launch, pool.Free())
	}
}

// TestConfigOf: a profile's options, and what they are where it has none.
func TestConfigOf(t *testing.T) {
	load := func(o engine.Options) *engine.Profile {
		p, err := engine.LoadProfile(engine.DefaultProfile)
		if err != nil {
			t.Fatal(err)
		}
		p.Engine = o
		return p
	}
	pool := kvcache.NewPool(4, 16, false)
	common := Config{Pool: pool, MaxModelLen: 10000, OutputDelay: 18_690 * time.Microsecond}
	for _, c := range []struct {
		o    engine.Options
		want Config
	}{
		{engine.Options{}, Config{Policy: PrefillFirst, MaxNumSeqs: 256, MaxBatchedTokens: 10000, ChunkTokens: 512}},
		{engine.Options{Scheduler: "vllm-v1"}, Config{Policy: V1, MaxNumSeqs: 256, MaxBatchedTokens: 2048, ChunkTokens: 512}},
		{
			engine.Options{Scheduler: "vllm-v1", MaxNumSeqs: 9, MaxBatchedTokens: 99, LongPrefillTokens: 33, MaxRunningRequests: 3, ChunkedPrefillSize: 5},
			Config{Policy: V1, MaxNumSeqs: 9, MaxBatchedTokens: 99, ChunkTokens: 512, LongPrefillTokens: 33},
		},
		{engine.Options{Scheduler: "sglang"}, Config{Policy: SGLang, MaxNumSeqs: 256, MaxBatchedTokens: 16384, ChunkTokens: 8192, Conservativeness: 1}},
		{
			engine.Options{
				Scheduler: "sglang", MaxNumSeqs: 9, MaxBatchedTokens: 99, LongPrefillTokens: 33, MaxRunningRequests: 3, MaxPrefillTokens: 7,
				ChunkedPrefillSize: -1, SchedulePolicy: "lpm", ScheduleConservativeness: 0.3, PrefillDecodeInterval: 2,
			},
			Config{Policy: SGLang, MaxNumSeqs: 3, MaxBatchedTokens: 7, LongestPrefixFirst: true, Conservativeness: 0.3, PrefillDecodeInterval: 2},
		},
	} {
		c.want.Pool, c.want.MaxModelLen, c.want.OutputDelay = common.Pool, common.MaxModelLen, common.OutputDelay
		got := ConfigOf(load(c.o), false, pool)
		if got != c.want {
			t.Errorf("%+v:\ngot  %+v\nwant %+v", c.o, got, c.want)
		}
		if err := got.Validate(); err != nil {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
