package placement

import (
	"maps"
	"slices"
)

// DLoRA gives LoRA adapters to nodes by how much each is asked for, and sends a request to the
// least loaded of its adapter's nodes.
const DLoRA = "dlora"

var dloraKind = kind[placer]{DLoRA, "the nodes that a LoRA adapter was given to, by how much it is asked for; of these the fewest requests", func(int, bool) Policy {
	return &dlora{asked: make(map[string]int), given: make(map[string][]string)}
}}

// dlora is the dispatch of dLoRA (Wu et al., OSDI 2024), as its artifact has it
// (LLMServe/dLoRA-artifact, vllm/engine/engine_manager.py). From there:
//
//   - adapters are expected to be asked for alike at first, and each request counts for its own;
//   - while a node has room for one more, it gets the adapter whose part of all replicas is
//     furthest below its part of the requests: that raises the least burst tolerance, which is the
//     memory of an adapter's nodes by its part of the requests;
//   - together nodes have room for all adapters and, less one, for as many replicas as nodes;
//   - a request goes to the node with the least to do of those that its adapter was given to. If
//     there is none, the one with the fewest requests gets the adapter.
//
// Migration moves running requests later. The node that gets one loads its adapter, says so, and
// is one of the adapter's from then on, in place of a replica that others have too.
//
// What is left out: dLoRA's engine merges an adapter into the model while many ask for it, its
// credits say when another has its turn, and a node's load is counted in batches of which merged
// ones cost less. Nodes here do not change what is merged, so a request is as good as another.
type dlora struct {
	turn  int
	asked map[string]int      // requests of an adapter, and one
	all   int                 // sum of asked
	given map[string][]string // nodes of an adapter
}

func (p *dlora) WantsPrefix() bool { return false }

func (p *dlora) Place(r Request, candidates []Candidate) int {
	p.turn++
	if r.Adapter == "" {
		return least(p.turn-1, candidates, func(i int) int { return candidates[i].InFlight })
	}
	if p.asked[r.Adapter] == 0 {
		p.ask(r.Adapter)
	}
	p.ask(r.Adapter)
	room := (len(p.asked) + 2*len(candidates) - 2) / len(candidates) // of a node, at least
	for i := range candidates {
		for _, a := range candidates[i].Adapters {
			p.give(a, &candidates[i], room)
		}
	}
	const elsewhere = 1 << 32
	node := least(p.turn-1, candidates, func(i int) int {
		if slices.Contains(p.given[r.Adapter], candidates[i].ID) {
			return candidates[i].InFlight
		}
		return elsewhere + candidates[i].InFlight
	})
	p.give(r.Adapter, &candidates[node], room)
	p.spread(candidates)
	return node
}

func (p *dlora) ask(adapter string) {
	p.asked[adapter]++
	p.all++
}

// give has an adapter be on a node, in place of another if the node has no room for it: of those
// that are on other nodes too, the one that is asked for least a replica.
func (p *dlora) give(adapter string, c *Candidate, room int) {
	if slices.Contains(p.given[adapter], c.ID) {
		return
	}
	p.given[adapter] = append(p.given[adapter], c.ID)
	on, least, drop := 0, 0.0, ""
	for _, a := range slices.Sorted(maps.Keys(p.given)) {
		nodes := p.given[a]
		if !slices.Contains(nodes, c.ID) {
			continue
		}
		on++
		if each := float64(p.asked[a]) / float64(len(nodes)); a != adapter && len(nodes) > 1 && (drop == "" || each < least) {
			least, drop = each, a
		}
	}
	if on > max(room, c.AdapterSlots) && drop != "" {
		p.given[drop] = slices.DeleteFunc(p.given[drop], func(id string) bool { return id == c.ID })
	}
}

// spread gives free slots to the adapters that have the fewest replicas for what they are asked.
func (p *dlora) spread(candidates []Candidate) {
	replicas, used := 0, make(map[string]int) // by node
	for _, nodes := range p.given {
		for _, id := range nodes {
			used[id]++
		}
		replicas += len(nodes)
	}
	for i := range candidates {
		c := &candidates[i]
		for ; used[c.ID] < c.AdapterSlots; used[c.ID]++ {
			next, most := "", 0.0
			for _, a := range slices.Sorted(maps.Keys(p.asked)) {
				lacks := float64(p.asked[a])/float64(p.all) - float64(len(p.given[a]))/float64(replicas)
				if !slices.Contains(p.given[a], c.ID) && (next == "" || lacks > most) {
					next, most = a, lacks
				}
			}
			if next == "" {
				break // it has all
			}
			p.given[next] = append(p.given[next], c.ID)
			replicas++
		}
	}
}
