package placement

import "cmp"

// caches are what nodes are taken to have in their prefix caches: what was placed on each
// before, least recently used first to go, in as many blocks as its pool has. The nodes are
// not asked.
type caches struct {
	blockTokens int
	turn        int
	nodes       map[string]*prefixes
}

// forget is after how many placements without being a candidate a node is taken
// to be gone for good.
const forget = 1 << 16

// unknownBlocks stands for a pool of unknown size: an A10's has 15,200.
const unknownBlocks = 1 << 14

func newCaches(blockTokens int) caches {
	return caches{blockTokens: max(blockTokens, 1), nodes: make(map[string]*prefixes)}
}

// next begins a placement, and returns its turn from 0.
func (k *caches) next() int {
	k.turn++
	return k.turn - 1
}

// saved is how many tokens of a prompt a candidate has. One token is always left to compute:
// the first output is drawn from it.
func (k *caches) saved(c *Candidate, r *Request) int {
	n := k.nodes[c.ID]
	if n == nil {
		return 0
	}
	n.seen = k.turn
	usable := min(len(r.Prefix), max(r.Tokens-1, 0)/k.blockTokens)
	return n.match(r.Prefix[:usable]) * k.blockTokens
}

// add notes that a prompt goes to a candidate.
func (k *caches) add(c *Candidate, r *Request) {
	n := k.nodes[c.ID]
	if n == nil {
		n = newPrefixes(cmp.Or(c.Blocks, unknownBlocks))
		k.nodes[c.ID] = n
	}
	n.seen = k.turn
	n.add(r.Prefix)
	if k.turn%forget == 0 {
		for id, n := range k.nodes {
			if k.turn-n.seen >= forget {
				delete(k.nodes, id)
			}
		}
	}
}
