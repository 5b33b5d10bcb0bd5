package kvcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// verify checks the invariants in Pool's comment and Refs' conservation: every
// block is in exactly one place.
func (p *Pool) verify() error {
	place := make([]string, len(p.blocks))
	put := func(id BlockID, where string) error {
		if int(id) >= len(place) {
			return fmt.Errorf("block %d is %s but was never allocated", id, where)
		}
		if place[id] != "" {
			return fmt.Errorf("block %d is %s and %s", id, place[id], where)
		}
		place[id] = where
		return nil
	}
	held := func(i int) (f prefix) {
		if p.caching {
			f = p.prefixes[i]
		}
		return f
	}
	for i, b := range p.blocks {
		if b.refs < 0 || b.gen == 0 {
			return fmt.Errorf("block %d: %+v", i, b)
		}
		if b.refs > 0 {
			place[i] = "held"
		}
		if f := held(i); f.cached {
			if at, ok := p.index.Find(f.hash); !ok || int(at) != i {
				return fmt.Errorf("block %d caches %v, the index says %d, %v", i, f.hash, at, ok)
			}
		}
	}
	for _, id := range p.free {
		if err := put(id, "free"); err != nil {
			return err
		}
		if held(int(id)).cached {
			return fmt.Errorf("block %d is free and cached", id)
		}
	}
	n, prev := 0, nowhere
	for id := p.lru.front; id != nowhere; prev, id = id, p.prefixes[id].link.next {
		if err := put(id, "on the LRU list"); err != nil {
			return err
		}
		if b := p.prefixes[id]; !b.cached || b.link.prev != prev {
			return fmt.Errorf("block %d on the LRU list: %+v, previous %d", id, b, prev)
		}
		n++
	}
	if n != p.lru.len || p.lru.back != prev {
		return fmt.Errorf("LRU list has %d blocks and ends with %d, says %d and %d", n, prev, p.lru.len, p.lru.back)
	}
	if i := slices.Index(place, ""); i >= 0 {
		return fmt.Errorf("block %d is nowhere", i)
	}
	cached := 0
	for _, f := range p.prefixes {
		if f.cached {
			cached++
		}
	}
	if cached != p.index.Len() {
		return fmt.Errorf("%d blocks are cached, the index has %d", cached, p.index.Len())
	}
	if p.Free()+p.Used() != p.Total() || p.Free() < 0 || p.Used() < 0 {
		return fmt.Errorf("free %d + used %d != total %d", p.Free(), p.Used(), p.Total())
	}
	return nil
}

// A model is the pool as one would write it without care for time: a slice of
// records, searched and sorted.
type model struct {
	blocks  []modelBlock
	clock   int // counts releases
	caching bool
	stats   Stats
}

type modelBlock struct {
	gen      uint32
	refs     int
	prefix   Hash // zero: none
	released int  // clock at the last release; 0: never allocated
}

// alloc picks, by the documented order, the free blocks an allocation gets.
func (m *model) alloc(n int) ([]Ref, bool) {
	var refs []Ref
	saved, savedStats := slices.Clone(m.blocks), m.stats
	for range n {
		best, bestRank := -1, 0
		for i, b := range m.blocks {
			if b.refs > 0 {
				continue
			}
			const age = 1 << 40
			rank := age - i // never used, in order
			switch {
			case b.prefix != Hash{}:
				rank = -b.released // cached: last, oldest first
			case b.released > 0:
				rank = age + b.released // free: first, newest first
			}
			if best < 0 || rank > bestRank {
				best, bestRank = i, rank
			}
		}
		if best < 0 {
			m.blocks, m.stats = saved, savedStats
			return nil, false
		}
		b := &m.blocks[best]
		if b.prefix != (Hash{}) {
			m.stats.Evictions++
		}
		b.gen, b.refs, b.prefix = b.gen+1, 1, Hash{}
		refs = append(refs, Ref{BlockID(best), b.gen})
	}
	return refs, true
}

func (m *model) valid(r Ref) bool { b := m.blocks[r.ID]; return b.gen == r.Gen && b.refs > 0 }

func (m *model) release(refs []Ref) (bad int) {
	for _, r := range slices.Backward(refs) {
		if !m.valid(r) {
			bad++
			continue
		}
		m.clock++
		m.blocks[r.ID].refs--
		m.blocks[r.ID].released = m.clock
	}
	return bad
}

func (m *model) find(h Hash) int {
	return slices.IndexFunc(m.blocks, func(b modelBlock) bool { return b.prefix == h })
}

func (m *model) match(hashes []Hash) (refs []Ref) {
	if !m.caching {
		return nil
	}
	for _, h := range hashes {
		i := m.find(h)
		if i < 0 {
			break
		}
		m.blocks[i].refs++
		refs = append(refs, Ref{BlockID(i), m.blocks[i].gen})
	}
	return refs
}

func (m *model) commit(r Ref, h Hash) (ok bool) {
	if !m.valid(r) {
		return false
	}
	b := &m.blocks[r.ID]
	switch {
	case !m.caching:
	case b.prefix == Hash{}:
		if m.find(h) < 0 {
			b.prefix = h
		}
	case b.prefix != h:
		return false
	}
	return true
}

// flush forgets all prefixes. Cached blocks that nobody holds become free in the order in
// which they were released, after all that were free before.
func (m *model) flush() (prefixes int) {
	for {
		oldest := -1
		for i, b := range m.blocks {
			if b.prefix != (Hash{}) && b.refs == 0 && (oldest < 0 || b.released < m.blocks[oldest].released) {
				oldest = i
			}
		}
		if oldest < 0 {
			break
		}
		m.clock++
		m.blocks[oldest].released, m.blocks[oldest].prefix = m.clock, Hash{}
		prefixes++
	}
	for i := range m.blocks {
		if m.blocks[i].prefix != (Hash{}) {
			m.blocks[i].prefix = Hash{}
			prefixes++
		}
	}
	return prefixes
}

// TestPoolAgainstModel plays random operations, a quarter of them with wrong
// references, on the pool and on the model; both must give the same blocks, refuse
// the same references and count the same. The blocks ever handed out are as many as
// were held or cached at once, so that is what a slab costs of memory.
func TestPoolAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 7))
		total, caching := 1+rng.IntN(24), seed%3 != 0
		p := NewPool(total, 16, caching)
		m := &model{blocks: make([]modelBlock, total), caching: caching}
		// A few documents over three-letter alphabets share many prefixes.
		var docs [][]Hash
		for range 6 {
			var h Hash
			var doc []Hash
			for range 1 + rng.IntN(6) {
				h = HashBlock(h, []Token{rng.Uint32N(3)})
				doc = append(doc, h)
			}
			docs = append(docs, doc)
		}
		var held, dead []Ref // with repetition: one entry per reference; references given back
		pick := func() []Ref {
			var refs []Ref
			for range rng.IntN(5) {
				from := held
				if rng.IntN(8) == 0 {
					from = dead
				}
				if len(from) > 0 {
					refs = append(refs, from[rng.IntN(len(from))])
				}
			}
			return refs
		}
		gens := make(map[BlockID]uint32)
		peak := 0
		for op := range 400 {
			what := ""
			kind := rng.IntN(6)
			if rng.IntN(40) == 0 {
				kind = 6
			}
			switch kind {
			case 6:
				got, want := p.Flush(), m.flush()
				what = fmt.Sprintf("flush() = %d; model %d", got, want)
				if got != want || p.Cached() != 0 || p.Prefixes() != 0 {
					t.Fatalf("seed %d op %d: %s; %d cached, %d prefixes left", seed, op, what, p.Cached(), p.Prefixes())
				}
			case 0, 1:
				n := rng.IntN(total/2 + 2)
				got, ok := p.Alloc(n)
				want, wantOK := m.alloc(n)
				what = fmt.Sprintf("alloc(%d) = %v, %v; model %v, %v", n, got, ok, want, wantOK)
				if ok != wantOK || !slices.Equal(got, want) {
					t.Fatalf("seed %d op %d: %s", seed, op, what)
				}
				for _, r := range got {
					if r.Gen <= gens[r.ID] {
						t.Fatalf("seed %d op %d: %s: generation %d follows %d", seed, op, what, r.Gen, gens[r.ID])
					}
					gens[r.ID] = r.Gen
				}
				held = append(held, got...)
			case 2, 3:
				refs := pick()
				err := p.Release(refs)
				was := slices.Clone(m.blocks)
				bad := m.release(refs)
				what = fmt.Sprintf("release(%v): %v; model refuses %d", refs, err, bad)
				if countErrors(err) != bad {
					t.Fatalf("seed %d op %d: %s", seed, op, what)
				}
				for id := range was {
					for range was[id].refs - m.blocks[id].refs {
						i := slices.Index(held, Ref{BlockID(id), was[id].gen})
						dead = append(dead, held[i])
						held = slices.Delete(held, i, i+1)
					}
				}
			case 4:
				refs := pick()
				err := p.Retain(refs)
				bad := 0
				for _, r := range refs {
					if !m.valid(r) {
						bad++
					}
				}
				what = fmt.Sprintf("retain(%v): %v; model refuses %d", refs, err, bad)
				if countErrors(err) != bad {
					t.Fatalf("seed %d op %d: %s", seed, op, what)
				}
				if bad == 0 {
					for _, r := range refs {
						m.blocks[r.ID].refs++
					}
					held = append(held, refs...)
				}
			case 5:
				doc := docs[rng.IntN(len(docs))]
				if got, want := p.Lookup(doc), len(m.match(doc)); caching && got != want {
					t.Fatalf("seed %d op %d: lookup(%v) = %d, want %d", seed, op, doc, got, want)
				} else if caching {
					for _, h := range doc[:want] { // undo the model's references
						m.blocks[m.find(h)].refs--
					}
				}
				got, want := p.Match(doc), m.match(doc)
				what = fmt.Sprintf("match(%v) = %v; model %v", doc, got, want)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d op %d: %s", seed, op, what)
				}
				held = append(held, got...)
				for _, r := range pick() {
					h := doc[rng.IntN(len(doc))]
					err, ok := p.Commit([]Ref{r}, []Hash{h}), m.commit(r, h)
					if (err == nil) != ok {
						t.Fatalf("seed %d op %d: commit(%v, %v): %v; model %v", seed, op, r, h, err, ok)
					}
				}
			}
			if err := p.verify(); err != nil {
				t.Fatalf("seed %d op %d, after %s: %v", seed, op, what, err)
			}
			if peak = max(peak, p.Used()+p.Cached()); len(p.blocks) != peak {
				t.Fatalf("seed %d op %d, after %s: %d blocks were handed out, at most %d of them at once", seed, op, what, len(p.blocks), peak)
			}
			used := 0
			for i, b := range m.blocks {
				if b.refs > 0 {
					used++
				}
				if i < len(p.blocks) && int(p.blocks[i].refs) != b.refs {
					t.Fatalf("seed %d op %d, after %s: block %d has %d references, want %d", seed, op, what, i, p.blocks[i].refs, b.refs)
				}
			}
			if p.Used() != used || p.Stats() != m.stats {
				t.Fatalf("seed %d op %d, after %s: used %d, stats %+v; want %d, %+v", seed, op, what, p.Used(), p.Stats(), used, m.stats)
			}
			for _, r := range slices.Concat(held, dead) {
				if p.Valid(r) != m.valid(r) {
					t.Fatalf("seed %d op %d, after %s: Valid(%v) = %v", seed, op, what, r, p.Valid(r))
				}
			}
		}
		if err := p.Release(held); err != nil || p.Used() != 0 {
			t.Fatalf("seed %d: every reference given back: %v, %d blocks in use", seed, err, p.Used())
		}
	}
}

// countErrors is the number of blocks an error of Retain or Release names. All
// must be *RefErrors that say why.
func countErrors(err error) int {
	if err == nil {
		return 0
	}
	errs := err.(interface{ Unwrap() []error }).Unwrap()
	for _, err := range errs {
		var re *RefError
		if !errors.As(err, &re) || !errors.Is(err, ErrStale) && !errors.Is(err, ErrNotHeld) {
			return -1
		}
	}
	return len(errs)
}

func TestPoolRefErrors(t *testing.T) {
	p := NewPool(2, 16, true)
	first, _ := p.Alloc(1)
	if err := p.Release(first); err != nil {
		t.Fatal(err)
	}
	const never = "kvcache: retain block 1 of generation 1: was never allocated"
	const twice = "kvcache: release block 0 of generation 1: is not held"
	const stale = "kvcache: commit block 0 of generation 1: was recycled and is of generation 2 now"
	const other = "kvcache: commit block 0 of generation 2: already holds another prefix"
	check := func(err error, target error, text string) {
		t.Helper()
		var re *RefError
		if !errors.Is(err, target) || !errors.As(err, &re) || err.Error() != text {
			t.Errorf("got %v, want %s", err, text)
		} else if target != ErrNoBlock && re.Gen != p.blocks[re.Ref.ID].gen {
			t.Errorf("%v says generation %d, the block is of %d", err, re.Gen, p.blocks[re.Ref.ID].gen)
		}
	}
	check(p.Release(first), ErrNotHeld, twice)
	check(p.Retain([]Ref{{ID: 1, Gen: 1}}), ErrNoBlock, never)
	second, _ := p.Alloc(1)
	check(p.Commit([]Ref{first[0]}, []Hash{{1}}), ErrStale, stale)
	if err := errors.Join(p.Commit([]Ref{second[0]}, []Hash{{1}}), p.Commit([]Ref{second[0]}, []Hash{{1}})); err != nil {
		t.Errorf("committing the same prefix twice: %v", err)
	}
	check(p.Commit([]Ref{second[0]}, []Hash{{2}}), ErrRecommit, other)
	if p.Valid(Ref{}) || p.Valid(first[0]) || !p.Valid(second[0]) {
		t.Error("Valid: want only the second reference")
	}
}

// After 1<<32 recyclings the generation skips 0, which no Ref may have.
func TestPoolGenerationWraps(t *testing.T) {
	p := NewPool(1, 16, false)
	refs, _ := p.Alloc(1)
	p.blocks[0].gen = 1<<32 - 1
	refs[0].Gen = 1<<32 - 1
	if err := p.Release(refs); err != nil {
		t.Fatal(err)
	}
	if refs, ok := p.Alloc(1); !ok || refs[0].Gen != 1 {
		t.Errorf("got %v, want generation 1", refs)
	}
}

func TestPoolPanicsOnNonsense(t *testing.T) {
	for _, f := range []func(){
		func() { NewPool(0, 16, false) },
		func() { NewPool(1, 0, false) },
		func() { NewPool(1<<32, 16, false) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			f()
		}()
	}
}
