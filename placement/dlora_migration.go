package placement

import "slices"

// DLoRAMigration is the dlora among the migrations.
const DLoRAMigration = "dlora"

var dloraMigrationKind = kind[migrator]{DLoRAMigration, "off a node that is a threshold of requests above the mean, or whose KV pool is full, to those below it that have a slot for the LoRA adapter", func(o MigrationOptions) Migration {
	return &dloraMigration{periodic{blockTokens: max(o.BlockTokens, 1), threshold: max(o.Threshold, 1)}}
}}

// dloraMigration is the periodic migration of dLoRA (Wu et al., OSDI 2024), by its artifact
// (LLMServe/dLoRA-artifact, vllm/engine/engine_manager.py and migration_ilp.py; every 10 s there,
// with a threshold of 16). From there:
//
//   - a node with nine tenths of its KV pool in use is balanced with the one that uses least, if
//     that has less than nine tenths in use;
//   - else the node with the most requests is balanced with those that have fewer than the mean,
//     least first, as many as can take what it has above the mean, if that is the threshold or
//     more;
//   - among these, requests go where the node that takes longest takes least, each as long as
//     another, and no node has requests of more adapters than it has slots.
//
// dLoRA has a solver of integer linear programs for the last. Here one request after another goes
// to the node with the fewest, as long as it has two fewer: where requests count alike and slots
// are not in the way, no other choice has the longest end sooner. It goes whose adapter is there
// before whose must be loaded, then who has the least KV. dLoRA moves requests that wait, too;
// here those stay.
type dloraMigration struct{ periodic }

func (p *dloraMigration) Migrate(nodes []Node) (moves []Move) {
	from, to := p.unbalanced(nodes)
	if from < 0 {
		return nil
	}
	b := balance{p: p, nodes: nodes, gone: make(map[uint64]bool)}
	for i := range nodes {
		used := make(map[string]bool)
		for _, r := range nodes[i].Running {
			used[r.Adapter] = true
		}
		delete(used, "") // the base model takes no slot
		b.legs, b.free, b.used = append(b.legs, nodes[i].InFlight), append(b.free, nodes[i].FreeBlocks), append(b.used, used)
	}
	for {
		slices.SortStableFunc(to, func(x, y int) int { return b.legs[x] - b.legs[y] })
		i := slices.IndexFunc(to, func(t int) bool { return b.worth(from, t) && b.pick(from, t) != nil })
		if i < 0 {
			return moves
		}
		r := b.pick(from, to[i])
		b.move(r, from, to[i])
		moves = append(moves, Move{r.ID, nodes[from].ID, nodes[to[i]].ID})
	}
}

// full reports whether nine tenths of a pool are in use.
func full(n *Node, free int) bool { return n.Blocks > 0 && 10*free <= n.Blocks }

// unbalanced is the node that gives requests away and those that take them; -1 if all may stay.
func (p *dloraMigration) unbalanced(nodes []Node) (from int, to []int) {
	legs, leaving := 0, -1
	for i := range nodes {
		switch {
		case !nodes[i].Leaving:
			to = append(to, i)
			legs += nodes[i].InFlight
		case leaving < 0 && len(nodes[i].Running) > 0:
			leaving = i
		}
	}
	if leaving >= 0 || len(to) < 2 {
		return leaving, to
	}
	used := func(i int) int { return nodes[i].Blocks - nodes[i].FreeBlocks }
	slices.SortStableFunc(to, func(x, y int) int { return used(x) - used(y) })
	least, most := to[0], to[len(to)-1]
	if full(&nodes[most], nodes[most].FreeBlocks) && !full(&nodes[least], nodes[least].FreeBlocks) {
		return most, []int{least}
	}
	slices.SortStableFunc(to, func(x, y int) int { return nodes[x].InFlight - nodes[y].InFlight })
	from = to[len(to)-1]
	mean := float64(legs) / float64(len(to))
	above := float64(nodes[from].InFlight) - mean
	if above < float64(p.threshold) {
		return -1, nil
	}
	n := 0
	for ; n < len(to) && above > 0 && float64(nodes[to[n]].InFlight) < mean; n++ {
		above -= mean - float64(nodes[to[n]].InFlight)
	}
	return from, to[:n]
}

// balance is the nodes as they are after some moves.
type balance struct {
	p     *dloraMigration
	nodes []Node
	legs  []int
	free  []int             // blocks
	used  []map[string]bool // adapters of running requests
	gone  map[uint64]bool
}

// worth reports whether a node is better off if a request goes from it to another.
func (b *balance) worth(from, to int) bool {
	n := &b.nodes[from]
	return n.Leaving || full(n, b.free[from]) || b.legs[from]-b.legs[to] >= 2
}

// pick is the request that goes from a node to another, nil for none.
func (b *balance) pick(from, to int) (best *Running) {
	there := func(r *Running) bool { return r.Adapter == "" || slices.Contains(b.nodes[to].Adapters, r.Adapter) }
	slots := b.nodes[to].AdapterSlots
	for i := range b.nodes[from].Running {
		r := &b.nodes[from].Running[i]
		fits := r.Adapter == "" || b.used[to][r.Adapter] || slots == 0 || len(b.used[to]) < slots
		if b.gone[r.ID] || !fits || r.Left < soonOver || b.p.blocks(r) > b.free[to] {
			continue
		}
		if best == nil || there(r) && !there(best) || there(r) == there(best) && r.Tokens < best.Tokens {
			best = r
		}
	}
	return best
}

func (b *balance) move(r *Running, from, to int) {
	b.gone[r.ID] = true
	b.legs[from]--
	b.legs[to]++
	b.free[from] += (r.Tokens + b.p.blockTokens - 1) / b.p.blockTokens
	b.free[to] -= b.p.blocks(r)
	if r.Adapter != "" {
		b.used[to][r.Adapter] = true
	}
}
