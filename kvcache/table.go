package kvcache

import (
	"fmt"
	"slices"
)

// A Table is a sequence's block table: the blocks that hold its tokens, in
// order. Its zero value is an empty sequence. It holds one reference to each of
// its blocks. Like Pool it is not safe for concurrent use.
type Table struct {
	refs   []Ref
	tokens int // room asked for; blocksFor(tokens) == len(refs)
}

// Refs are the table's blocks in sequence order. The slice is the table's own
// and is valid until the next Adopt, Grow or Release; copy it to keep it.
func (t *Table) Refs() []Ref { return t.refs }

// Tokens is the length the table has room for, as last asked of Adopt or Grow.
func (t *Table) Tokens() int { return t.tokens }

// Adopt makes refs, full blocks the caller holds (as Match returns them), the
// table's first blocks. The references are the table's from then on. It is an
// error if the table has blocks already.
func (t *Table) Adopt(p *Pool, refs []Ref) error {
	if len(t.refs) > 0 {
		return fmt.Errorf("kvcache: adopt %d blocks: the block table already has %d", len(refs), len(t.refs))
	}
	t.refs = append(t.refs, refs...)
	t.tokens = len(refs) * p.blockTokens
	return nil
}

// Grow makes room for the sequence to be tokens tokens long in all, allocating
// only the blocks that are missing. False means the pool could not deliver all
// of them; then nothing has changed, and the caller waits or preempts. A table
// does not shrink: a smaller number is granted and changes nothing.
func (t *Table) Grow(p *Pool, tokens int) bool {
	if tokens <= t.tokens {
		return true
	}
	missing := blocksFor(tokens, p.blockTokens) - len(t.refs)
	if !p.canAlloc(missing) {
		return false
	}
	t.refs = p.take(slices.Grow(t.refs, missing), missing)
	t.tokens = tokens
	return true
}

// Release gives every block back to the pool and empties the table, so that a
// second Release does nothing. An error means that some other owner released
// the table's blocks.
func (t *Table) Release(p *Pool) error {
	refs := t.refs
	*t = Table{}
	return p.Release(refs)
}

// An Entry is one block of a block table, by its place there.
type Entry struct {
	Index int
	Ref   Ref
}

// A Pair is a block here and its counterpart, at the same place of the same sequence's
// block table on another node.
type Pair struct {
	Index         int
	Local, Remote Ref
}

// Pairs matches local, a table's blocks from the first on, with those of a remote table,
// leaving out what lies before block skip, which needs no moving, and what has no
// counterpart.
func Pairs(local []Ref, remote []Entry, skip int) []Pair {
	pairs := make([]Pair, 0, len(local))
	for _, b := range remote {
		if b.Index >= max(skip, 0) && b.Index < len(local) {
			pairs = append(pairs, Pair{Index: b.Index, Local: local[b.Index], Remote: b.Ref})
		}
	}
	return pairs
}
