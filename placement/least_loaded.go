package placement

// LeastLoaded takes the node with the fewest prompt tokens still to compute.
const LeastLoaded = "least-loaded"

var leastLoadedKind = kind[placer]{LeastLoaded, "the fewest prompt tokens to compute", func(int, bool) Policy { return &leastLoaded{} }}

// leastLoaded takes the node with the fewest prompt tokens to compute, which
// is what delays a first token (0.2 to 0.3 ms a token on an A10); nodes equal in
// that, as decode nodes are that compute no prompts, compare by legs in flight,
// and nodes equal in both take turns.
type leastLoaded struct{ turn int }

func (p *leastLoaded) Place(_ Request, candidates []Candidate) int {
	p.turn++
	return least(p.turn-1, candidates, func(i int) int { return candidates[i].WaitingTokens })
}

func (p *leastLoaded) WantsPrefix() bool { return false }

// least is the candidate of the least cost, then of the fewest legs, then the
// next in turn.
func least(turn int, candidates []Candidate, cost func(i int) int) int {
	n := len(candidates)
	best := turn % n
	bestCost := cost(best)
	for k := 1; k < n; k++ {
		i := (turn + k) % n
		c := cost(i)
		if c < bestCost || c == bestCost && candidates[i].InFlight < candidates[best].InFlight {
			best, bestCost = i, c
		}
	}
	return best
}
