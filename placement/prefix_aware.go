package placement

// PrefixAware takes the node that can begin with this prompt's own tokens soonest: what it
// still has to compute, less what its prefix cache saves.
const PrefixAware = "prefix-aware"

// Of nodes that only decode prefix-aware treats all alike, as least-loaded does: they
// compute no prompts that a cache could save, and equal prefixes sent to one of them would
// only crowd it.
var prefixAwareKind = kind[placer]{PrefixAware, "what a node has to compute, less what its prefix cache saves", func(blockTokens int, compute bool) Policy {
	if !compute {
		return &leastLoaded{}
	}
	return newPrefixAware(blockTokens)
}}

// prefixAware takes the node that has the fewest tokens to compute before this
// prompt is done: those waiting there and what the prompt has beyond the prefix
// that the node has cached.
type prefixAware struct{ caches }

func newPrefixAware(blockTokens int) *prefixAware { return &prefixAware{newCaches(blockTokens)} }

func (p *prefixAware) WantsPrefix() bool { return true }

func (p *prefixAware) Place(r Request, candidates []Candidate) int {
	best := least(p.next(), candidates, func(i int) int {
		return candidates[i].WaitingTokens + r.Tokens - p.saved(&candidates[i], &r)
	})
	p.add(&candidates[best], &r)
	return best
}
