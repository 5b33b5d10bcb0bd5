package placement

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"weak"

	"kvferry/kvcache"
)

func TestPlacement(t *testing.T) {
	nodes := func(loads ...[2]int) (c []Candidate) {
		for i, l := range loads {
			c = append(c, Candidate{ID: string(rune('a' + i)), WaitingTokens: l[0], InFlight: l[1]})
		}
		return c
	}
	for _, tc := range []struct {
		name       string
		compute    bool
		candidates []Candidate
		want       string // of six placements in a row
	}{
		{RoundRobin, true, nodes([2]int{9, 9}, [2]int{0, 0}, [2]int{0, 0}), "abcabc"},
		{RoundRobin, true, nodes([2]int{9, 9}), "aaaaaa"},
		{LeastLoaded, true, nodes([2]int{9, 0}, [2]int{8, 5}, [2]int{10, 0}), "bbbbbb"},
		{LeastLoaded, true, nodes([2]int{0, 3}, [2]int{0, 2}, [2]int{0, 4}), "bbbbbb"},
		{LeastLoaded, true, nodes([2]int{0, 0}, [2]int{0, 0}, [2]int{1, 0}), "abaaba"},
		{PrefixAware, false, nodes([2]int{0, 0}, [2]int{0, 0}, [2]int{1, 0}), "abaaba"},
		// The first is placed by turn; the others follow the prefix while the node
		// that has it is no more than 32 tokens behind.
		{PrefixAware, true, nodes([2]int{0, 0}, [2]int{0, 0}, [2]int{0, 0}), "aaaaaa"},
		{PrefixAware, true, nodes([2]int{5, 0}, [2]int{0, 0}, [2]int{0, 0}), "bbbbbb"},
	} {
		p, err := New(tc.name, 16, tc.compute)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.WantsPrefix(), tc.name == PrefixAware && tc.compute; got != want {
			t.Errorf("%s, compute %v: wants prefixes: %v", tc.name, tc.compute, got)
		}
		prompt := make([]kvcache.Token, 40)
		r := Request{Tokens: len(prompt)}
		if p.WantsPrefix() {
			r.Prefix = kvcache.PrefixHashes(kvcache.Hash{}, prompt, 16)
		}
		var got []byte
		for range 6 {
			got = append(got, tc.candidates[p.Place(r, tc.candidates)].ID...)
		}
		if string(got) != tc.want {
			t.Errorf("%s over %v: %s, want %s", tc.name, tc.candidates, got, tc.want)
		}
	}
}

// TestPrefixGoesElsewhereUnderLoad: a cached prefix saves its own tokens and no
// more: a node that is further behind than that does not get the request.
func TestPrefixGoesElsewhereUnderLoad(t *testing.T) {
	p, _ := New(PrefixAware, 16, true)
	r := Request{Tokens: 100, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, make([]kvcache.Token, 100), 16)}
	c := []Candidate{{ID: "a"}, {ID: "b"}}
	first := p.Place(r, c)
	c[first].WaitingTokens = 95
	if p.Place(r, c) != first {
		t.Error("96 tokens are cached and 95 wait: the request went elsewhere")
	}
	c[first].WaitingTokens = 97
	if p.Place(r, c) == first {
		t.Error("96 tokens are cached and 97 wait: the request stayed")
	}
}

// TestPrefixLeavesATokenToCompute: of a prompt that is cached whole the last
// block is computed again, for the token that the first output is drawn from.
func TestPrefixLeavesATokenToCompute(t *testing.T) {
	for waiting, stays := range map[int]bool{79: true, 81: false} {
		p, _ := New(PrefixAware, 16, true)
		r := Request{Tokens: 96, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, make([]kvcache.Token, 96), 16)}
		c := []Candidate{{ID: "a"}, {ID: "b"}}
		first := p.Place(r, c)
		c[first].WaitingTokens = waiting
		if got := p.Place(r, c) == first; got != stays {
			t.Errorf("80 of 96 tokens need no computing and %d wait: stayed is %v", waiting, got)
		}
	}
}

// TestPrefixAwareRemembers: what a node is taken to have is all that was placed on it,
// as far as its pool goes.
func TestPrefixAwareRemembers(t *testing.T) {
	request := func(first kvcache.Token, tokens int) Request {
		prompt := make([]kvcache.Token, tokens)
		prompt[0] = first
		return Request{Tokens: tokens, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, prompt, 16)}
	}
	for _, tc := range []struct {
		blocks int // of the pool
		before []Request
		ask    Request
		saved  int // tokens that the node need not compute
	}{
		{0, []Request{request(1, 97), request(2, 97)}, request(1, 97), 96},
		{0, []Request{request(1, 97)}, request(1, 96), 80},
		{2, []Request{request(1, 97)}, request(1, 97), 32},
		{6, []Request{request(1, 97), request(2, 33)}, request(1, 97), 64},
		{0, []Request{request(1, 97)}, Request{Tokens: 97}, 0}, // no hashes were made
	} {
		for _, more := range []int{-1, 1} { // tokens that wait there
			p, _ := New(PrefixAware, 16, true)
			for _, r := range tc.before {
				p.Place(r, []Candidate{{ID: "a", Blocks: tc.blocks}})
			}
			there := p.Place(tc.ask, []Candidate{{ID: "a", WaitingTokens: 100 + tc.saved + more}, {ID: "other", WaitingTokens: 100}}) == 0
			if there != (more < 0) {
				t.Errorf("%d blocks, want %d of %d tokens saved: with %+d waiting it is placed there: %v", tc.blocks, tc.saved, tc.ask.Tokens, more, there)
			}
		}
	}
	// Blocks of no size are taken for blocks of one token, and a prompt of nothing has none.
	p, _ := New(PrefixAware, 0, true)
	r := Request{Tokens: 40, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, make([]kvcache.Token, 40), 1)}
	p.Place(r, []Candidate{{ID: "a"}})
	p.Place(Request{Prefix: r.Prefix}, []Candidate{{ID: "a"}})
	if got := p.Place(r, []Candidate{{ID: "a", WaitingTokens: 38}, {ID: "b"}}); got != 0 {
		t.Error("39 of 40 tokens are saved and 38 wait: the request went elsewhere")
	}
}

// TestPrefixesAgainstModel compares with lists that are searched and kept from
// front to end, over prompts that share parts of their chains.
func TestPrefixesAgainstModel(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		limit := 1 + rng.IntN(40)
		p := newPrefixes(limit)
		var model []kvcache.Hash // least recent first
		var prompts [][]kvcache.Token
		for range 400 {
			var prompt []kvcache.Token
			if len(prompts) > 0 && rng.IntN(3) > 0 {
				old := prompts[rng.IntN(len(prompts))]
				prompt = slices.Clone(old[:rng.IntN(len(old)+1)])
			}
			for range rng.IntN(12) {
				prompt = append(prompt, rng.Uint32N(50))
			}
			prompts = append(prompts, prompt)
			prefix := kvcache.PrefixHashes(kvcache.Hash{}, prompt, 1)

			want := 0
			for want < len(prefix) && slices.Contains(model, prefix[want]) {
				want++
			}
			if got := p.match(prefix); got != want {
				t.Fatalf("seed %d: %d of %d blocks match, want %d", seed, got, len(prefix), want)
			}
			if rng.IntN(2) == 0 {
				continue // asked, and placed elsewhere
			}
			p.add(prefix)
			for i := min(len(prefix), limit) - 1; i >= 0; i-- {
				model = slices.DeleteFunc(model, func(h kvcache.Hash) bool { return h == prefix[i] })
				model = append(model, prefix[i])
				if len(model) > limit {
					model = model[1:]
				}
			}
			var blocks []kvcache.Hash
			for r := p.end.next; r != &p.end; r = r.next {
				for _, h := range slices.Backward(r.hashes) {
					blocks = append(blocks, h)
				}
				if p.runs[r.hashes[0]] != r {
					t.Fatalf("seed %d: a run is not found by its first block", seed)
				}
			}
			if !slices.Equal(blocks, model) || p.blocks != len(model) {
				t.Fatalf("seed %d: %d blocks %v, want %v", seed, p.blocks, blocks, model)
			}
		}
	}
}

// TestPrefixesLetGo: blocks that are no longer there take no memory.
func TestPrefixesLetGo(t *testing.T) {
	p := newPrefixes(64)
	var gone []weak.Pointer[run]
	for i := range 100 {
		prefix := make([]kvcache.Hash, 64)
		for j := range prefix {
			prefix[j] = kvcache.Hash{byte(i), byte(j)}
		}
		if i == 0 { // in many runs
			for n := range prefix {
				p.add(prefix[:n])
			}
		}
		p.add(prefix)
		gone = append(gone, weak.Make(p.end.next))
	}
	runtime.GC()
	left := 0
	for _, r := range gone {
		if r.Value() != nil {
			left++
		}
	}
	if left > 1 {
		t.Errorf("%d runs are kept", left)
	}
	runtime.KeepAlive(p)
}

// TestPrefixAwareForgets: what is known of nodes that are gone is dropped, and
// of nodes that are there but not chosen is not.
func TestPrefixAwareForgets(t *testing.T) {
	p := newPrefixAware(16)
	r := Request{Tokens: 40, Prefix: kvcache.PrefixHashes(kvcache.Hash{}, make([]kvcache.Token, 40), 16)}
	p.Place(r, []Candidate{{ID: "gone"}})
	p.Place(r, []Candidate{{ID: "busy"}})
	for range 2*forget - 3 {
		p.Place(Request{Tokens: 1}, []Candidate{{ID: "here"}, {ID: "busy", WaitingTokens: 9}})
	}
	// In the turn in which the others are looked at.
	if p.Place(r, []Candidate{{ID: "new"}}); p.nodes["new"] == nil {
		t.Error("a node that a request was just placed on is forgotten")
	}
	delete(p.nodes, "new")
	if len(p.nodes) != 2 || p.nodes["here"] == nil || p.nodes["busy"] == nil || p.nodes["busy"].match(r.Prefix) != 2 {
		t.Errorf("remembered are %v, want here and busy, with its prefix", p.nodes)
	}
}

// BenchmarkPrefixAware places prompts of 12,000 tokens whose first half is one of
// fifty.
func BenchmarkPrefixAware(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	var prompts []Request
	for i := range 1000 {
		tokens := make([]kvcache.Token, 12000)
		for j := range tokens {
			tokens[j] = uint32(i % 50)
			if j >= 6000 {
				tokens[j] = rng.Uint32()
			}
		}
		prompts = append(prompts, Request{Tokens: len(tokens), Prefix: kvcache.PrefixHashes(kvcache.Hash{}, tokens, 16)})
	}
	for _, nodes := range []int{8, 500} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			p := newPrefixAware(16)
			c := make([]Candidate, nodes)
			for i := range c {
				c[i] = Candidate{ID: fmt.Sprint(i), Blocks: 15200}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n := p.Place(prompts[i%len(prompts)], c)
				c[n].WaitingTokens += 12000
				c[(i*7)%nodes].WaitingTokens = 0
			}
		})
	}
}
