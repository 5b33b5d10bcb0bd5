package kvcache

import (
	"errors"
	"fmt"
	"math"
)

// A BlockID is the number of a block in its pool and of its slot in the slab.
type BlockID uint32

// A Ref is a block as it was when it was allocated. Gen changes each time the
// block is recycled for other contents and is never 0, so the zero Ref is never
// valid.
type Ref struct {
	ID  BlockID
	Gen uint32
}

// String is "7@3": block 7, generation 3.
func (r Ref) String() string { return fmt.Sprintf("%d@%d", r.ID, r.Gen) }

// What may be wrong with a Ref. They arrive wrapped in a *RefError.
var (
	// ErrStale: the block has been recycled since the Ref was issued.
	ErrStale = errors.New("was recycled")
	// ErrNotHeld: nobody holds the block; a second Release of it, most likely.
	ErrNotHeld = errors.New("is not held")
	// ErrNoBlock: the pool has never handed out such a block.
	ErrNoBlock = errors.New("was never allocated")
	// ErrRecommit: the block was committed for another prefix before.
	ErrRecommit = errors.New("already holds another prefix")
)

// A RefError says which block an operation refused, and why.
type RefError struct {
	Op  string // "retain", "release" or "commit"
	Ref Ref
	Gen uint32 // the block's generation now; 0 with ErrNoBlock
	Err error  // one of the errors above
}

func (e *RefError) Error() string {
	s := fmt.Sprintf("kvcache: %s block %d of generation %d: %v", e.Op, e.Ref.ID, e.Ref.Gen, e.Err)
	if e.Gen != e.Ref.Gen && e.Gen != 0 {
		s += fmt.Sprintf(" and is of generation %d now", e.Gen)
	}
	return s
}

func (e *RefError) Unwrap() error { return e.Err }

// Stats count since the pool was made.
type Stats struct {
	PrefixQueries uint64 // tokens of the prompts that were looked up, those outside full blocks too
	PrefixHits    uint64 // tokens of those that were found
	Evictions     uint64 // cached prefixes given up to Alloc
}

// A Pool hands out a fixed number of blocks and counts the references to them.
// It touches no memory: a thousand pools in a simulation cost what their
// busiest moment used.
//
//	         Alloc                      Release, last reference
//	fresh ────────▶ held ───────────────────────────▶ free (a stack)
//	                ▲ ▲│ committed                      │
//	          Match │ ││                                │ Alloc
//	                │ │└───▶ cached (LRU) ──evict──┐    │
//	                └─┼──────────┘                 │    │
//	                  └────────────────────────────┴────┘
//
// Alloc prefers the block that was freed last, whose memory is mapped and warm,
// then one never used, and gives up a cached prefix only after those, least
// recently released first. So the blocks ever handed out, whose slots have memory
// behind them, are as many as were held or cached at once at the busiest moment.
//
// Invariants: a block that was ever allocated is in exactly one of three
// states: held (refs > 0), on the free stack, or on the LRU list. It is on the
// LRU list exactly if refs == 0 and cached. index has h at id exactly if block id is
// cached with hash h.
type Pool struct {
	total       int
	blockTokens int
	caching     bool

	blocks   []block              // the blocks allocated so far; those from len(blocks) to total are fresh
	prefixes []prefix             // what they hold, with caching
	free     []BlockID            // released, holding nothing of use; the last one is allocated first
	index    *Index               // of cached blocks
	lru      lruList              // released but cached
	spoilt   map[BlockID]struct{} // not to be cached until they are recycled: see Evict
	stats    Stats
}

// A block is what is looked at each time that it is allocated or released; without caching, a
// thousand pools touch nothing else.
type block struct {
	gen  uint32
	refs int32
}

type prefix struct {
	cached bool
	hash   Hash // if cached
	link   link // if on the LRU list
}

// NewPool makes a pool of blocks blocks of blockTokens tokens, all free. Without
// prefixCaching, Match finds nothing and Commit does nothing. It panics if a
// number is not positive: Geometry.Validate and NewSlab have refused that before.
func NewPool(blocks, blockTokens int, prefixCaching bool) *Pool {
	if blocks < 1 || uint64(blocks) > math.MaxUint32 || blockTokens < 1 {
		panic(fmt.Sprintf("kvcache: pool of %d blocks of %d tokens", blocks, blockTokens))
	}
	p := &Pool{
		total:       blocks,
		blockTokens: blockTokens,
		caching:     prefixCaching,
		lru:         newLRUList(),
	}
	p.index = NewIndex(func(id uint32) Hash { return p.prefixes[id].hash })
	return p
}

// Total is the number of blocks. A sequence that needs more than that can never
// be served, however long it waits.
func (p *Pool) Total() int { return p.total }

// Free is the number of blocks that Alloc can deliver, counting the cached ones
// that nobody holds.
func (p *Pool) Free() int { return p.total - len(p.blocks) + len(p.free) + p.lru.len }

// Used is the number of blocks that somebody holds: Total - Free.
func (p *Pool) Used() int { return p.total - p.Free() }

// Cached is the number of blocks that hold a prefix and that nobody holds. They
// are counted in Free.
func (p *Pool) Cached() int { return p.lru.len }

// Prefixes is the number of prefixes that Match could find, held or not.
func (p *Pool) Prefixes() int { return p.index.Len() }

// BlockTokens is the number of tokens in a block.
func (p *Pool) BlockTokens() int { return p.blockTokens }

// Stats returns the counts so far.
func (p *Pool) Stats() Stats { return p.stats }

// Alloc returns n blocks with one reference to each, or false and none. False is
// back-pressure: the caller waits until something is released, or preempts. The
// contents of the blocks are whatever the last tenant left.
func (p *Pool) Alloc(n int) ([]Ref, bool) {
	if !p.canAlloc(n) {
		return nil, false
	}
	return p.take(make([]Ref, 0, max(n, 0)), n), true
}

func (p *Pool) canAlloc(n int) bool { return n <= p.Free() }

// take allocates n blocks more. The caller has made sure there are as many.
func (p *Pool) take(refs []Ref, n int) []Ref {
	id := p.lru.front
	for range n - len(p.free) - (p.total - len(p.blocks)) { // that will be evicted
		p.index.Near(&p.prefixes[id].hash)
		id = p.prefixes[id].link.next
	}
	for range n {
		refs = append(refs, p.takeOne())
	}
	return refs
}

func (p *Pool) takeOne() Ref {
	var id BlockID
	switch {
	case len(p.free) > 0:
		id = p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
	case len(p.blocks) < p.total:
		id = BlockID(len(p.blocks))
		p.blocks = append(p.blocks, block{})
		if p.caching {
			p.prefixes = append(p.prefixes, prefix{})
		}
	default:
		id = p.evict()
	}
	delete(p.spoilt, id)
	b := &p.blocks[id]
	b.refs = 1
	b.gen++
	if b.gen == 0 { // 1<<32 recyclings later: 0 stays the generation of no block
		b.gen = 1
	}
	return Ref{ID: id, Gen: b.gen}
}

// evict gives up the cached prefix that was released longest ago.
func (p *Pool) evict() BlockID {
	id := p.lru.popFront(p.prefixes)
	p.index.Remove(uint32(id))
	b := &p.prefixes[id]
	b.cached, b.hash = false, Hash{}
	p.stats.Evictions++
	return id
}

// Flush forgets every prefix: nothing that was committed before is matched again. Blocks
// that somebody holds stay his; the others are free at once. Returns how many prefixes
// there were.
func (p *Pool) Flush() int {
	n := p.index.Len()
	for p.lru.len > 0 {
		id := p.lru.popFront(p.prefixes)
		p.free = append(p.free, id)
	}
	for i := range p.prefixes {
		p.prefixes[i].cached, p.prefixes[i].hash = false, Hash{}
	}
	p.index.Clear()
	return n
}

// Evict takes blocks that hold the wrong bytes out of the prefix cache: none of them is matched
// any more, and Commit leaves them out until they are recycled. Who holds them goes on holding
// them. Blocks that were recycled since are left alone.
func (p *Pool) Evict(refs []Ref) {
	for _, r := range refs {
		if !p.caching || !p.Current(r) {
			continue
		}
		if p.spoilt == nil {
			p.spoilt = make(map[BlockID]struct{})
		}
		p.spoilt[r.ID] = struct{}{}
		b := &p.prefixes[r.ID]
		if !b.cached {
			continue
		}
		p.index.Remove(uint32(r.ID))
		b.cached, b.hash = false, Hash{}
		if p.blocks[r.ID].refs == 0 {
			p.lru.remove(p.prefixes, r.ID)
			p.free = append(p.free, r.ID)
		}
	}
}

// Current reports whether the block that r was issued for has not been recycled, held or not.
func (p *Pool) Current(r Ref) bool {
	return int64(r.ID) < int64(len(p.blocks)) && p.blocks[r.ID].gen == r.Gen
}

// Valid reports whether somebody holds the block that r was issued for.
func (p *Pool) Valid(r Ref) bool { return p.check("", r) == nil }

// check returns nil if r names a block as it is now, and it is held.
func (p *Pool) check(op string, r Ref) error {
	if int64(r.ID) >= int64(len(p.blocks)) {
		return &RefError{Op: op, Ref: r, Err: ErrNoBlock}
	}
	b := &p.blocks[r.ID]
	switch {
	case b.gen != r.Gen:
		return &RefError{Op: op, Ref: r, Gen: b.gen, Err: ErrStale}
	case b.refs == 0:
		return &RefError{Op: op, Ref: r, Gen: b.gen, Err: ErrNotHeld}
	}
	return nil
}

// Retain adds a reference to each block, which somebody must hold already. On an
// error, which names every block it refused, nothing has changed.
func (p *Pool) Retain(refs []Ref) error {
	var faults []error
	for _, r := range refs {
		if err := p.check("retain", r); err != nil {
			faults = append(faults, err)
		}
	}
	if faults != nil {
		return errors.Join(faults...)
	}
	for _, r := range refs {
		p.blocks[r.ID].refs++
	}
	return nil
}

// Release gives back one reference to each block. With the last one the block
// becomes free, or stays matchable if it was committed. An error names every
// block it refused; the others are released all the same, so that one bad
// reference leaks nothing.
//
// The blocks are let go from the last to the first: the next Alloc gets the
// first one first, and of a cached prefix the end is evicted before the
// beginning, without which the end could not be matched.
func (p *Pool) Release(refs []Ref) error {
	var faults []error
	for i := len(refs) - 1; i >= 0; i-- {
		if err := p.check("release", refs[i]); err != nil {
			faults = append(faults, err)
			continue
		}
		id := refs[i].ID
		b := &p.blocks[id]
		b.refs--
		switch {
		case b.refs > 0:
		case p.caching && p.prefixes[id].cached:
			p.lru.pushBack(p.prefixes, id)
		default:
			p.free = append(p.free, id)
		}
	}
	return errors.Join(faults...)
}

// Match returns the blocks of the longest cached prefix, in order, with one
// reference to each for the caller; nil if there is none or caching is off.
// hashes are those of PrefixHashes; a caller that must compute at least the last
// token, to have something to sample from, leaves out the hash of a block that
// ends with it. Queried counts what came of it.
func (p *Pool) Match(hashes []Hash) []Ref {
	if !p.caching {
		return nil
	}
	n := p.Lookup(hashes)
	if n == 0 {
		return nil
	}
	refs := make([]Ref, n)
	id := nowhere
	for i := range refs {
		id, _ = p.find(&hashes[i], id)
		b := &p.blocks[id]
		if b.refs == 0 {
			p.lru.remove(p.prefixes, id)
		}
		b.refs++
		refs[i] = Ref{ID: id, Gen: b.gen}
	}
	return refs
}

// find is the block that is cached with a hash. before is the one of the prefix before it, or nowhere: Release
// puts the two next to each other on the LRU list, so most are found there, in memory that is
// needed anyway.
func (p *Pool) find(h *Hash, before BlockID) (BlockID, bool) {
	if before != nowhere {
		id := p.prefixes[before].link.prev
		if int64(id) < int64(len(p.prefixes)) && p.prefixes[id].cached && p.prefixes[id].hash == *h {
			return id, true
		}
	}
	at, ok := p.index.Find(*h)
	return BlockID(at), ok
}

// Queried counts in Stats a prompt of so many tokens that was looked up, and how many of them
// Match found. It counts nothing with caching off. As vLLM counts (PrefixCacheStats of 0.32),
// the whole prompt is asked for, also the rest behind the last full block and the last token,
// which is never found; and a request asks once, when it is admitted, not again after it
// was preempted.
func (p *Pool) Queried(tokens, found int) {
	if p.caching {
		p.stats.PrefixQueries += uint64(tokens)
		p.stats.PrefixHits += uint64(found)
	}
}

// Lookup is the number of blocks that Match would return. It changes nothing.
func (p *Pool) Lookup(hashes []Hash) int {
	id := nowhere
	for i := range hashes {
		var ok bool
		if id, ok = p.find(&hashes[i], id); !ok {
			return i
		}
	}
	return len(hashes)
}

// Commit says that blocks the caller holds now contain full prefixes, each that of its hash, in
// memory and not only in the plan: from here on Match may give the blocks to
// others, also after their release until they are evicted. If another block holds the
// same prefix already, that one stays the one to match, and Commit does nothing with this one;
// so it does with caching off. An error names every block it refused; the others are committed
// all the same.
func (p *Pool) Commit(refs []Ref, hashes []Hash) error {
	if p.caching {
		for i := range hashes {
			p.index.Near(&hashes[i])
		}
	}
	var faults []error
	for i, r := range refs {
		if err := p.commit(r, &hashes[i]); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

func (p *Pool) commit(r Ref, h *Hash) error {
	if err := p.check("commit", r); err != nil {
		return err
	}
	if !p.caching {
		return nil
	}
	b := &p.prefixes[r.ID]
	if b.cached {
		if b.hash != *h {
			return &RefError{Op: "commit", Ref: r, Gen: r.Gen, Err: ErrRecommit}
		}
		return nil
	}
	if _, spoilt := p.spoilt[r.ID]; !spoilt && p.index.Add(*h, uint32(r.ID)) {
		b.cached, b.hash = true, *h
	}
	return nil
}
