package placement

// PrefixAware takes the node that can begin with this prompt's own tokens soonest: what it
// still has to compute, less what its prefix cache saves.
const PrefixAware = "prefix-aware"

// Of nodes that only decode prefix-aware treats all alike, as least-loaded does: they
// compute no prompts that a cache could save, and equal prefixes sent to one of them would
// only crowd it.
var prefixAwareKind = kind{PrefixAware, "what a node has to compute, less what its prefix cache saves", func(blockTokens int, compute bool) Policy {
	if !compute {
		return &leastLoaded{}
	}
	return newPrefixAware(blockTokens)
}}

// prefixAware takes the node that has the fewest tokens to compute before this
// prompt is done: those waiting there and what the prompt has beyond the prefix
// that the node has cached. The cache is not asked: it is taken to have what was
// placed on the node before, least recently used first to go, in as many blocks
// as the node's pool has.
type prefixAware struct {
	blockTokens int
	turn        int
	nodes       map[string]*prefixes
}

// forget is after how many placements without being a candidate a node is taken
// to be gone for good.
const forget = 1 << 16

// unknownBlocks stands for a pool of unknown size: an A10's has 15,200.
const unknownBlocks = 1 << 14

func newPrefixAware(blockTokens int) *prefixAware {
	return &prefixAware{blockTokens: max(blockTokens, 1), nodes: make(map[string]*prefixes)}
}

func (p *prefixAware) WantsPrefix() bool { return true }

func (p *prefixAware) Place(r Request, candidates []Candidate) int {
	p.turn++
	// One token is always left to compute: the first output is drawn from it.
	usable := min(len(r.Prefix), max(r.Tokens-1, 0)/p.blockTokens)
	best := least(p.turn-1, candidates, func(i int) int {
		n := p.nodes[candidates[i].ID]
		if n == nil {
			return candidates[i].WaitingTokens + r.Tokens
		}
		n.seen = p.turn
		return candidates[i].WaitingTokens + r.Tokens - n.match(r.Prefix[:usable])*p.blockTokens
	})
	c := &candidates[best]
	n := p.nodes[c.ID]
	if n == nil {
		blocks := c.Blocks
		if blocks == 0 {
			blocks = unknownBlocks
		}
		n = newPrefixes(blocks)
		p.nodes[c.ID] = n
	}
	n.seen = p.turn
	n.add(r.Prefix)
	if p.turn%forget == 0 {
		for id, n := range p.nodes {
			if p.turn-n.seen >= forget {
				delete(p.nodes, id)
			}
		}
	}
	return best
}
