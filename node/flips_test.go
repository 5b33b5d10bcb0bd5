package node

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/modelled"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/proxy/openai"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

var (
	flips     = flag.Int("flips", 1, "requests of each of TestFlips's cells")
	flipsRail = flag.String("flips-rail", "", "a rail for TestFlips that not every machine has, like rdma/rxe0")
)

// A tamperer is an executor that flips bits of the KV that it computes with.
type tamperer struct {
	engine.Executor
	slab *kvcache.Slab

	mu   sync.Mutex
	flip func(p point, q *engine.Sequence) // called at each point; nil: nothing
	refs []kvcache.Ref                     // of the sequence that was computed last
}

// A point names a moment in the life of a sequence.
type point struct {
	before, after bool // the step is about to be computed, or has been
	prompt        bool // it computes the prompt
	layer         int  // that was computed just now and is about to be reported; -1 for none
}

func (x *tamperer) at(p point, step *engine.Step) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, w := range step.Works {
		p.prompt = w.Prompt
		x.refs = append(x.refs[:0], w.Seq.Table.Refs()...)
		if x.flip != nil {
			x.flip(p, w.Seq)
		}
	}
}

func (x *tamperer) set(flip func(point, *engine.Sequence)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.flip = flip
}

func (x *tamperer) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration), read func()) (time.Duration, []kvcache.Token, error) {
	x.at(point{before: true, layer: -1}, step)
	end, tokens, err := x.Executor.Run(ctx, step, func(l int, at time.Duration) {
		x.at(point{layer: l}, step)
		if layer != nil {
			layer(l, at)
		}
	}, read)
	x.at(point{after: true, layer: -1}, step)
	return end, tokens, err
}

// bit flips one bit of K or V in the first tokens of a sequence, in one layer or in any (-1).
//
//go:norace
func (x *tamperer) bit(rng *rand.Rand, refs []kvcache.Ref, tokens, layer int) {
	g := x.slab.Geometry()
	if layer < 0 {
		layer = rng.IntN(g.Layers)
	}
	token, plane := rng.IntN(tokens), g.LayerBytes()/2
	row := plane / g.BlockTokens
	at := rng.IntN(2)*plane + token%g.BlockTokens*row + rng.IntN(row)
	x.slab.Layer(refs[token/g.BlockTokens].ID, layer)[at] ^= 1 << rng.IntN(8)
}

// An outcome records how a request ended whose KV was flipped.
type outcome struct {
	right, wrong bool // it ended well
	tokens       int  // before it ended with an error
}

// stream asks for tokens, and compares what comes with the answer of right KV.
func (s *nodes) stream(seed, length, n int) (o outcome) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clocktest.Patience)
	defer cancel()
	resp, err := s.complete(ctx, seed, length, n, true)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, done := "", false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		done = done || data == "[DONE]"
		var b struct{ Choices []struct{ Text string } }
		if ok && json.Unmarshal([]byte(data), &b) == nil && len(b.Choices) == 1 {
			text += b.Choices[0].Text
		}
	}
	o.tokens = strings.Count(text, " ")
	if done && resp.StatusCode == http.StatusOK {
		o.right = text == answerText(smallProfile(s.t).KVGeometry, seed, length, n)
		o.wrong = !o.right
	}
	return o
}

// answerText returns the answer of nodes with TokensFromKV to the request that complete sends.
func answerText(g kvcache.Geometry, seed, length, n int) string {
	const vocab = 151936
	tok := openai.NewTokenizer(vocab)
	r := engine.Request{MaxTokens: n}
	for i := range length {
		r.Prompt = append(r.Prompt, kvcache.Token((seed*7919+i*104729)%vocab))
	}
	r.Words.First, r.Words.Count = tok.Words()
	return tok.Decode(modelled.Answer(g, vocab, &r))
}

// counters reads the proxy's retries, its bad blocks by owner, and how often which nodes were put into quarantine.
func (s *nodes) counters() (retries int, owners, quarantines map[string]int) {
	s.t.Helper()
	resp, err := s.client.Get("http://" + s.proxy.daemon.HTTPAddr() + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	owners, quarantines = make(map[string]int), make(map[string]int)
	for line := range strings.Lines(string(page)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		n, _ := strconv.Atoi(value)
		if strings.HasPrefix(series, "kvferry:request_retries_total{") {
			retries += n
		}
		if labels, ok := strings.CutPrefix(series, "kvferry:kv_bad_blocks_total{"); ok && n > 0 {
			_, owner, _ := strings.Cut(labels, `owner="`)
			owner, _, _ = strings.Cut(owner, `"`)
			owners[owner] += n
		}
		if labels, ok := strings.CutPrefix(series, "kvferry:quarantines_total{"); ok && n > 0 {
			quarantines[labels] = n
		}
	}
	return retries, owners, quarantines
}

func (s *nodes) strikes() (n int64) {
	for _, node := range s.nodes {
		for _, rail := range node.daemon.kv.Rails() {
			n += rail.Strikes
		}
	}
	return n
}

// A cell is one place where bits are flipped.
type cell struct {
	name   string
	owners []string // that may be blamed
	early  bool     // before the decode node's first step, and after or without a token that the prefill node drew from it
	lands  bool     // the check at the end of a transfer finds it, with digests or without, before it is used
	rail   string   // "": TCP, and nothing is flipped on it
	cache  string   // role that has a prefix cache; each request is then asked twice, flipped in between
	// flip flips a bit once, at one of the points that the tamperer of its node calls it at.
	node string
	flip func(x *tamperer, rng *rand.Rand) func(point, *engine.Sequence)
}

const flippedPrompt, flippedTokens = 100, 20

// whenOnce calls f at the first point that it is for.
func whenOnce(is func(point, *engine.Sequence) bool, f func(point, *engine.Sequence)) func(point, *engine.Sequence) {
	done := false
	return func(p point, q *engine.Sequence) {
		if !done && is(p, q) {
			done = true
			f(p, q)
		}
	}
}

func flipCells(hand string) []cell {
	h, err := handoff.Parse(hand)
	writes := err == nil && h.Moves(handoff.PrefillLeg)
	computed := func(x *tamperer, rng *rand.Rand) func(point, *engine.Sequence) {
		layer := -1 // after the step, before anybody has read it
		if writes { // before the layer is written to the decode node, and the first token is drawn from it
			layer = rng.IntN(x.slab.Geometry().Layers)
		}
		return whenOnce(func(p point, _ *engine.Sequence) bool { return p.prompt && p.layer == layer && !p.before },
			func(p point, q *engine.Sequence) { x.bit(rng, q.Table.Refs(), len(q.Prompt), layer) })
	}
	// The row of the last token that has KV is computed once more by the first step.
	step := func(least, n int) func(*tamperer, *rand.Rand) func(point, *engine.Sequence) {
		return func(x *tamperer, rng *rand.Rand) func(point, *engine.Sequence) {
			skip := least + rng.IntN(n)
			return whenOnce(func(p point, _ *engine.Sequence) bool {
				skip -= map[bool]int{true: 1}[p.before && !p.prompt]
				return p.before && !p.prompt && skip < 0
			},
				func(_ point, q *engine.Sequence) { x.bit(rng, q.Table.Refs(), len(q.Prompt)-1, -1) })
		}
	}
	cells := []cell{
		{name: "prefill pool", owners: []string{"prefill", "wire"}, early: !writes, lands: !writes, node: "prefill-0", flip: computed},
		{name: "decode pool, first step", owners: []string{"decode"}, early: !h.InStep, // its first token leaves before a step
			node: "decode-0", flip: step(0, 1)},
		{name: "decode pool, later", owners: []string{"decode"}, node: "decode-0", flip: step(1, flippedTokens-4)},
		{name: "prefill cache", owners: []string{"prefill"}, early: true, lands: true, node: "prefill-0", cache: "prefill"},
		{name: "decode cache", owners: []string{"decode"}, early: true, node: "decode-0", cache: "decode"},
	}
	if h.InStep { // it does not look into the decode node's prefix cache
		cells = slices.DeleteFunc(cells, func(c cell) bool { return c.name == "decode cache" })
	}
	for _, rail := range []string{DefaultRail, "cma", "shm", *flipsRail} {
		if rail == "" {
			continue
		}
		cells = append(cells, cell{name: "rail " + rail, owners: []string{"wire"}, early: true, lands: true, rail: rail})
	}
	return cells
}

// TestFlips flips a bit of the KV of each request of a cluster whose tokens are drawn from KV, in each memory and
// on each kind of rail, and reports what became of the requests and who was blamed. make flips does it for 100
// requests each.
func TestFlips(t *testing.T) {
	for _, hand := range handoff.Names() {
		for _, c := range flipCells(hand) {
			t.Run(hand+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, hand)
			})
		}
	}
}

func (c *cell) run(t *testing.T, hand string) {
	var mu sync.Mutex
	tamperers, corrupters := map[string]*tamperer{}, []*transporttest.Corrupter{}
	s := startNodes(t, hand, func(cfg *Config) {
		cfg.TokensFromKV, cfg.KVChecks = true, "landing,hit,first,last"
		cfg.PrefixCaching = c.cache != "" && cfg.Role == map[string]proto.Role{"prefill": proto.Role_ROLE_PREFILL, "decode": proto.Role_ROLE_DECODE}[c.cache]
		if c.rail != "" {
			cfg.Rails = []string{c.rail}
			cfg.decorate = func(r transport.Rail) transport.Rail {
				mu.Lock()
				defer mu.Unlock()
				corrupters = append(corrupters, transporttest.Corrupt(r, 0))
				return corrupters[len(corrupters)-1]
			}
		}
		inner, id := *cfg, cfg.ID
		inner.NewExecutor = nil
		cfg.NewExecutor = func(slab *kvcache.Slab, clk clock.Clock) (engine.Executor, error) {
			inner.Clock = clk
			exec, err := inner.executor(slab)
			x := &tamperer{Executor: exec, slab: slab}
			mu.Lock()
			defer mu.Unlock()
			tamperers[id] = x
			return x, err
		}
	}, "prefill-0", "decode-0")
	defer s.end()
	if o := s.stream(1000, flippedPrompt, flippedTokens); !o.right {
		t.Fatalf("without a flip: %+v", o)
	}
	var mover *transporttest.Corrupter
	carried, perRequest := int64(0), int64(0)
	for i := 0; c.rail != "" && carried < 100; i++ { // so many that another request does not come to a multiple
		s.stream(1001+i, flippedPrompt, flippedTokens)
		for _, r := range corrupters {
			if n, _ := r.Carried(); n > 0 {
				mover, carried = r, n
				perRequest = n / int64(i+2)
			}
		}
	}
	rng := rand.New(rand.NewPCG(30, uint64(len(c.name))))
	var right, wrong, blamed int
	var failed []int // after how many tokens
	for i := range *flips {
		_, before, _ := s.counters()
		switch x := tamperers[c.node]; {
		case c.cache != "":
			if o := s.stream(i, flippedPrompt, flippedTokens); !o.right {
				t.Fatalf("request %d, before its prefix was flipped: %+v", i, o)
			}
			x.mu.Lock()
			refs := slices.Clone(x.refs)
			x.mu.Unlock()
			s.onLoop(s.nodes[c.node].daemon.w, func() { x.bit(rng, refs, (flippedPrompt-1)/16*16, -1) })
		case c.flip != nil:
			x.set(c.flip(x, rng))
		default: // one of its slices, and none of those that follow it
			n, _ := mover.Carried()
			mover.Every(int(n + 1 + rng.Int64N(perRequest)))
		}
		switch o := s.stream(i, flippedPrompt, flippedTokens); {
		case o.right:
			right++
		case o.wrong:
			wrong++
		default:
			failed = append(failed, o.tokens)
		}
		if c.flip != nil {
			tamperers[c.node].set(nil)
		}
		named := func() bool {
			_, owners, _ := s.counters()
			maps.DeleteFunc(owners, func(owner string, n int) bool { return n == before[owner] })
			others := maps.Clone(owners)
			maps.DeleteFunc(others, func(owner string, _ int) bool { return slices.Contains(c.owners, owner) })
			if len(others) == 0 && len(owners) > 0 {
				blamed++
			}
			return len(owners) > 0
		}
		s.until("somebody to be blamed", named)
	}
	var flipped int64
	if mover != nil {
		mover.Every(0)
		_, flipped = mover.Carried()
	}
	retries, owners, quarantines := s.counters()
	slices.Sort(failed)
	t.Logf("%-10s %-24s %3d requests: %3d right, %3d wrong with status ok, %3d failed after %v tokens; %d retries; owners %v, strikes of rails %d, quarantines %v",
		hand, c.name, *flips, right, wrong, len(failed), failed, retries, owners, s.strikes(), quarantines)
	if c.rail != "" && flipped != int64(*flips) {
		t.Errorf("%d slices were flipped, of %d requests", flipped, *flips)
	}
	if wrong > 0 || c.early && right < *flips || right+len(failed) < *flips || blamed < *flips {
		t.Errorf("%d right, %d wrong, %d failed; the owner was blamed right for %d of %d", right, wrong, len(failed), blamed, *flips)
	}
	if o := s.stream(2000, flippedPrompt, flippedTokens); !o.right {
		t.Errorf("afterwards, without a flip: %+v", o)
	}
}
