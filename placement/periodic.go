package placement

// Periodic has requests go from the node with the most to that with the fewest, while they
// differ by more than a threshold.
const Periodic = "periodic"

var periodicKind = kind[migrator]{Periodic, "from the node with the most requests to that with the fewest", func(o MigrationOptions) Migration {
	return &periodic{blockTokens: max(o.BlockTokens, 1), threshold: max(o.Threshold, 1)}
}}

// periodic counts requests: those that run cost their node about as much each, and those that
// wait there will. A node that is leaving counts as if it had more than any other, and takes
// none. Of a node's requests that goes which has the least KV to move; one that was moved
// before goes after those that were not, and one that is about to end does not go at all.
type periodic struct{ blockTokens, threshold int }

// soonOver is how many tokens a request must have left to be moved: what comes meanwhile would
// be most of it.
const soonOver = 16

func (p *periodic) Migrate(nodes []Node) (moves []Move) {
	loads, free, gone := make([]int, len(nodes)), make([]int, len(nodes)), map[uint64]bool{}
	for i := range nodes {
		loads[i], free[i] = nodes[i].InFlight, nodes[i].FreeBlocks
	}
	done := make([]bool, len(nodes)) // nothing more goes from there
	for {
		from, to := -1, -1
		for i := range nodes {
			switch {
			case done[i]:
			case from < 0, nodes[i].Leaving && !nodes[from].Leaving, nodes[i].Leaving == nodes[from].Leaving && loads[i] > loads[from]:
				from = i
			}
			if !nodes[i].Leaving && (to < 0 || loads[i] < loads[to]) {
				to = i
			}
		}
		if from < 0 || to < 0 || from == to || !nodes[from].Leaving && loads[from]-loads[to] <= p.threshold {
			return moves
		}
		r := p.cheapest(nodes[from].Running, gone, free[to])
		if r == nil {
			done[from] = true
			continue
		}
		gone[r.ID] = true
		moves = append(moves, Move{r.ID, nodes[from].ID, nodes[to].ID})
		loads[from]--
		loads[to]++
		free[to] -= p.blocks(r)
	}
}

// blocks is what a request may need where it goes.
func (p *periodic) blocks(r *Running) int {
	return (r.Tokens + r.Left + p.blockTokens - 1) / p.blockTokens
}

// cheapest is the request to move, nil for none.
func (p *periodic) cheapest(running []Running, gone map[uint64]bool, free int) (best *Running) {
	for i := range running {
		r := &running[i]
		if gone[r.ID] || r.Left < soonOver || p.blocks(r) > free {
			continue
		}
		if best == nil || r.Moves < best.Moves || r.Moves == best.Moves && r.Tokens < best.Tokens {
			best = r
		}
	}
	return best
}
