package kvcache

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestTableGrow(t *testing.T) {
	p := NewPool(4, 16, false)
	var tab Table
	for _, tc := range []struct {
		tokens, blocks int
		ok             bool
		room           int
	}{
		{0, 0, true, 0},
		{1, 1, true, 1},
		{16, 1, true, 16},
		{17, 2, true, 17},
		{5, 2, true, 17}, // does not shrink
		{65, 2, false, 17},
		{64, 4, true, 64},
		{65, 4, false, 64},
	} {
		if ok := tab.Grow(p, tc.tokens); ok != tc.ok || len(tab.Refs()) != tc.blocks || p.Used() != tc.blocks || tab.Tokens() != tc.room {
			t.Errorf("Grow(%d) = %v: %d blocks, %d used, room for %d; want %v, %d, %d",
				tc.tokens, ok, len(tab.Refs()), p.Used(), tab.Tokens(), tc.ok, tc.blocks, tc.room)
		}
	}
	for range 2 {
		if err := tab.Release(p); err != nil || p.Used() != 0 || tab.Tokens() != 0 || len(tab.Refs()) != 0 {
			t.Errorf("Release: %v, %d used, %d tokens", err, p.Used(), tab.Tokens())
		}
	}
	if !tab.Grow(p, 16) {
		t.Error("a released table cannot grow again")
	}
}

func TestTableAdopt(t *testing.T) {
	p := NewPool(8, 16, true)
	tokens := testTokens(40)
	hashes := PrefixHashes(Hash{}, tokens, 16)
	var first, second Table
	if !first.Grow(p, len(tokens)) {
		t.Fatal("pool exhausted")
	}
	for i, h := range hashes {
		if err := p.Commit([]Ref{first.Refs()[i]}, []Hash{h}); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Adopt(p, p.Match(hashes)); err != nil {
		t.Fatal(err)
	}
	if second.Tokens() != 32 || !second.Grow(p, len(tokens)) {
		t.Errorf("adopted %d tokens, want 32", second.Tokens())
	}
	a, b := first.Refs(), second.Refs()
	if !slices.Equal(a[:2], b[:2]) || a[2] == b[2] || p.Used() != 4 {
		t.Errorf("tables %v and %v, %d blocks used: want two blocks shared of four", a, b, p.Used())
	}
	if err := second.Adopt(p, nil); err == nil || !strings.Contains(err.Error(), "already has 3") {
		t.Errorf("second Adopt: %v", err)
	}
	if err := first.Release(p); err != nil || p.Used() != 3 || !p.Valid(b[0]) {
		t.Errorf("after one of two released: %v, %d used", err, p.Used())
	}
	if err := second.Release(p); err != nil || p.Used() != 0 || p.Cached() != 2 {
		t.Errorf("after both released: %v, %d used, %d cached", err, p.Used(), p.Cached())
	}
}

// TestServing is the package as a node uses it: sequences that share prefixes
// come and go on a pool too small for them, write the blocks they did not find
// cached, and check every block of theirs, before they leave, against the tokens.
// A block recycled, evicted or matched wrongly shows as wrong bytes.
func TestServing(t *testing.T) {
	type running struct {
		table   Table
		content *Content
		tokens  int
	}
	g := small
	const blocks = 40
	s := newSlab(t, g, blocks)
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 11))
		p := NewPool(blocks, g.BlockTokens, seed%4 != 0)
		prompts := [][]Token{testTokens(30), testTokens(31), testTokens(32)}
		var live []*running
		checked, waited := 0, 0
		finish := func(i int) {
			r := live[i]
			for b, ref := range r.table.Refs() {
				for l := range g.Layers {
					if err := r.content.check(s.Layer(ref.ID, l), b, l); err != nil {
						t.Fatalf("seed %d: block %v: %v", seed, ref, err)
					}
				}
				if err := r.content.checkHidden(s.Hidden(ref.ID), b); err != nil {
					t.Fatalf("seed %d: block %v: %v", seed, ref, err)
				}
				checked++
			}
			if err := r.table.Release(p); err != nil {
				t.Fatal(err)
			}
			live = slices.Delete(live, i, i+1)
		}
		for range 300 {
			if len(live) > 0 && rng.IntN(3) == 0 {
				finish(rng.IntN(len(live)))
				continue
			}
			// A prefix of a known prompt, then something of its own.
			prompt := prompts[rng.IntN(len(prompts))]
			tokens := append(slices.Clone(prompt[:rng.IntN(len(prompt)+1)]), testTokens(1+rng.IntN(6))...)
			hashes := PrefixHashes(Hash{}, tokens, g.BlockTokens)
			r := &running{content: NewContent(g, "", "", tokens), tokens: len(tokens)}
			matched := p.Match(hashes)
			if err := r.table.Adopt(p, matched); err != nil {
				t.Fatal(err)
			}
			if !r.table.Grow(p, len(tokens)) {
				waited++
				if err := r.table.Release(p); err != nil {
					t.Fatal(err)
				}
				continue
			}
			p.Queried(len(tokens), len(matched)*g.BlockTokens)
			for b, ref := range r.table.Refs()[len(matched):] {
				b += len(matched)
				for l := range g.Layers {
					r.content.Fill(s.Layer(ref.ID, l), b, l)
				}
				r.content.FillHidden(s.Hidden(ref.ID), b)
				if b < len(hashes) {
					if err := p.Commit([]Ref{ref}, []Hash{hashes[b]}); err != nil {
						t.Fatal(err)
					}
				}
			}
			live = append(live, r)
			if err := p.verify(); err != nil {
				t.Fatal(err)
			}
		}
		for len(live) > 0 {
			finish(0)
		}
		st := p.Stats()
		if caching := seed%4 != 0; p.Used() != 0 || checked == 0 || waited == 0 ||
			caching != (st.PrefixHits > 0) || caching != (st.Evictions > 0) {
			t.Errorf("seed %d: %d used, %d blocks checked, %d waited, %+v: the test did not reach what it is for", seed, p.Used(), checked, waited, st)
		}
	}
}

// TestPairs: what is matched, and what a peer cannot make us match.
func TestPairs(t *testing.T) {
	local := []Ref{{ID: 10}, {ID: 11}, {ID: 12}}
	remote := []Entry{{1, Ref{ID: 21}}, {0, Ref{ID: 20}}, {2, Ref{ID: 22}}, {3, Ref{ID: 23}}, {-1, Ref{ID: 24}}}
	for skip, want := range map[int][]Pair{
		-2: {{1, Ref{ID: 11}, Ref{ID: 21}}, {0, Ref{ID: 10}, Ref{ID: 20}}, {2, Ref{ID: 12}, Ref{ID: 22}}},
		0:  {{1, Ref{ID: 11}, Ref{ID: 21}}, {0, Ref{ID: 10}, Ref{ID: 20}}, {2, Ref{ID: 12}, Ref{ID: 22}}},
		2:  {{2, Ref{ID: 12}, Ref{ID: 22}}},
		3:  {},
	} {
		if got := Pairs(local, remote, skip); !slices.Equal(got, want) {
			t.Errorf("from block %d: %v, want %v", skip, got, want)
		}
	}
}
