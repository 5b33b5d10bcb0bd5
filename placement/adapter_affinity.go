package placement

import "slices"

// AdapterAffinity takes a node that has the request's LoRA adapter in a slot.
const AdapterAffinity = "adapter-affinity"

var adapterAffinityKind = kind[placer]{AdapterAffinity, "nodes that have the LoRA adapter, then those with a free slot, then the others; of these the least load", func(int, bool) Policy { return &adapterAffinity{} }}

// adapterAffinity is how routers in front of engines go by adapters (the Gateway API's inference
// extension, llm-d): a node that has the adapter saves loading it, one with a free slot saves
// throwing another out, and among equals the load decides. A node that is a batch behind the
// least loaded one is not taken for its adapter: loading it elsewhere takes less than that.
type adapterAffinity struct{ turn int }

// behind is how many requests more than the least loaded node has are too many.
const behind = 16

func (p *adapterAffinity) Place(r Request, candidates []Candidate) int {
	p.turn++
	fewest := slices.MinFunc(candidates, func(a, b Candidate) int { return a.InFlight - b.InFlight }).InFlight
	return least(p.turn-1, candidates, func(i int) int {
		c := &candidates[i]
		switch {
		case r.Adapter == "":
			return c.WaitingTokens
		case slices.Contains(c.Adapters, r.Adapter) && c.InFlight < fewest+behind:
			return c.InFlight
		case len(c.Adapters) < c.AdapterSlots:
			return 1<<32 + c.InFlight
		}
		return 2<<32 + c.InFlight
	})
}

func (p *adapterAffinity) WantsPrefix() bool { return false }
