package placement

import (
	"cmp"
	"maps"
	"slices"
)

// DLoRA gives LoRA adapters to nodes by how much each is asked for, and sends a request to the
// least loaded of its adapter's nodes.
const DLoRA = "dlora"

var dloraKind = kind[placer]{DLoRA, "the nodes that a LoRA adapter was given to, by how much it is asked for; of these the fewest requests", func(int, bool) Policy {
	return &dlora{asked: make(map[string]int), given: make(map[string][]string), seen: make(map[string]int)}
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
// What is left out: a node's load is counted in batches there, of which those that could be merged
// cost less. Which adapter is merged into the model's weights is the node's affair, here as there.
type dlora struct {
	turn  int
	asked map[string]int      // requests of an adapter, and one
	all   int                 // sum of asked
	given map[string][]string // nodes of an adapter
	seen  map[string]int      // the turn in which an adapter was last asked for, or on a node
}

// maxAdapters and maxNodes bound what is remembered: adapters come and go, under new names, and so do
// nodes. A proxy serves as many adapters at a time.
const maxAdapters, maxNodes = 1 << 12, 1 << 10

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
	p.forget()
	return node
}

func (p *dlora) ask(adapter string) {
	p.seen[adapter] = p.turn
	p.asked[adapter]++
	p.all++
}

// on has an adapter be on a node more.
func (p *dlora) on(adapter, node string) {
	nodes := p.given[adapter]
	p.given[adapter] = append(nodes[max(len(nodes)+1-maxNodes, 0):], node)
}

// forget forgets the adapters that were seen longest ago, if there are too many.
func (p *dlora) forget() {
	if len(p.seen) <= maxAdapters {
		return
	}
	names := slices.SortedFunc(maps.Keys(p.seen), func(a, b string) int {
		return cmp.Or(cmp.Compare(p.seen[a], p.seen[b]), cmp.Compare(a, b))
	})
	for _, a := range names[:len(names)-maxAdapters*7/8] {
		p.all -= p.asked[a]
		delete(p.asked, a)
		delete(p.given, a)
		delete(p.seen, a)
	}
}

// give has an adapter be on a node, in place of another if the node has no room for it: of those
// that are on other nodes too, the one that is asked for least a replica.
func (p *dlora) give(adapter string, c *Candidate, room int) {
	p.seen[adapter] = p.turn
	if slices.Contains(p.given[adapter], c.ID) {
		return
	}
	p.on(adapter, c.ID)
	on, least, drop := 0, 0.0, ""
	for a, nodes := range p.given {
		if !slices.Contains(nodes, c.ID) {
			continue
		}
		on++
		if each := float64(p.asked[a]) / float64(len(nodes)); a != adapter && len(nodes) > 1 && (drop == "" || each < least || each == least && a < drop) {
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
			for a, asked := range p.asked {
				lacks := float64(asked)/float64(p.all) - float64(len(p.given[a]))/float64(replicas)
				if !slices.Contains(p.given[a], c.ID) && (next == "" || lacks > most || lacks == most && a < next) {
					next, most = a, lacks
				}
			}
			if next == "" {
				break // it has all
			}
			p.on(next, c.ID)
			replicas++
		}
	}
}
