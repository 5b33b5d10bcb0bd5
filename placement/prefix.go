package placement

import (
	"slices"
	"sort"

	"kvferry/kvcache"
)

// prefixes are the prefixes that a node is believed to have, a bounded number of
// blocks, least recently used out first.
//
// A prompt's blocks are used from the last to the first, so a block goes before those in
// front of it, and of any prompt the blocks that are there are its first ones. They are kept in
// runs: a prompt has hundreds of blocks and few runs.
type prefixes struct {
	limit  int
	blocks int                   // in all runs
	runs   map[kvcache.Hash]*run // by the first block
	end    run                   // of the list: next is the least recent run, prev the most
	path   []*run                // scratch: the runs of a prompt
	seen   int                   // turn of the policy in which the node was last a candidate
}

// A run is blocks that follow each other in a prompt, and were used last by the same one. A Hash names all
// before it too: of two prompts that have a block in common, the blocks before it are the same.
type run struct {
	hashes     []kvcache.Hash
	prev, next *run
}

func newPrefixes(limit int) *prefixes {
	p := &prefixes{limit: limit, runs: make(map[kvcache.Hash]*run)}
	p.end.prev, p.end.next = &p.end, &p.end
	return p
}

// match is how many of the first blocks are there.
func (p *prefixes) match(prefix []kvcache.Hash) int {
	n := 0
	for n < len(prefix) {
		r := p.runs[prefix[n]]
		if r == nil {
			break
		}
		same := r.common(prefix[n:])
		n += same
		if same < len(r.hashes) {
			break
		}
	}
	return n
}

// add uses a prompt's blocks. Of a prompt longer than the limit the first
// blocks stay.
func (p *prefixes) add(prefix []kvcache.Hash) {
	prefix = prefix[:min(len(prefix), p.limit)]
	p.path = p.path[:0]
	for n := 0; n < len(prefix); {
		r := p.runs[prefix[n]]
		if r == nil {
			r = p.begin(slices.Clone(prefix[n:]), &p.end)
			p.blocks += len(r.hashes)
		} else if same := r.common(prefix[n:]); same < len(r.hashes) {
			p.begin(slices.Clone(r.hashes[same:]), r) // these are not used
			r.hashes = slices.Clone(r.hashes[:same])
		}
		p.path = append(p.path, r)
		n += len(r.hashes)
	}
	for _, r := range slices.Backward(p.path) {
		r.unlink()
		r.link(&p.end)
	}
	clear(p.path) // it would keep those that go, and they those that went after them
	for p.blocks > p.limit {
		p.shorten(p.end.next, p.blocks-p.limit)
	}
}

// begin makes a run, used just before another.
func (p *prefixes) begin(hashes []kvcache.Hash, before *run) *run {
	r := &run{hashes: hashes}
	p.runs[hashes[0]] = r
	r.link(before)
	return r
}

// shorten takes up to n blocks off the end of a run.
func (p *prefixes) shorten(r *run, n int) {
	n = min(n, len(r.hashes))
	p.blocks -= n
	if n == len(r.hashes) {
		delete(p.runs, r.hashes[0])
		r.unlink()
		return
	}
	r.hashes = r.hashes[:len(r.hashes)-n]
	if 2*len(r.hashes) < cap(r.hashes) {
		r.hashes = slices.Clone(r.hashes) // so that memory is as large as what is there
	}
}

// common is how many blocks a prompt has in common with the run; the first is.
func (r *run) common(prefix []kvcache.Hash) int {
	n := min(len(r.hashes), len(prefix))
	if r.hashes[n-1] == prefix[n-1] {
		return n
	}
	return sort.Search(n, func(i int) bool { return r.hashes[i] != prefix[i] })
}

func (r *run) link(before *run) {
	r.prev, r.next = before.prev, before
	before.prev.next, before.prev = r, r
}

func (r *run) unlink() { r.prev.next, r.next.prev = r.next, r.prev }
