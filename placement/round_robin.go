package placement

// RoundRobin has the nodes take turns, whatever they have to do: the simplest there is, and
// what the others are compared with.
const RoundRobin = "round-robin"

var roundRobinKind = kind[placer]{RoundRobin, "in turn", func(int, bool) Policy { return &roundRobin{} }}

type roundRobin struct{ next int }

func (p *roundRobin) Place(_ Request, candidates []Candidate) int {
	p.next++
	return (p.next - 1) % len(candidates)
}

func (p *roundRobin) WantsPrefix() bool { return false }
