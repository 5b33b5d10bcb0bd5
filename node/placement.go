package node

import (
	"fmt"
	"sync/atomic"
)

// Placements a proxy offers.
const (
	PlacementRoundRobin  = "round-robin"
	PlacementLeastLoaded = "least-loaded"
)

// Candidate is what placement knows of a node that could take a leg.
type Candidate struct {
	ID string
	// WaitingTokens are the prompt tokens the node has still to compute: what
	// it last reported plus what it was sent since, so that a burst inside one
	// of its iterations does not all go to one node.
	WaitingTokens int
	// InFlight counts the legs the node holds.
	InFlight int
}

// A Placer chooses the node for a leg. The proxy keeps one for each role.
type Placer interface {
	// Place returns an index into candidates, which has at least one element
	// and keeps its order while the cluster does not change.
	Place(candidates []Candidate) int
}

// NewPlacer returns the placer of that name.
func NewPlacer(name string) (Placer, error) {
	switch name {
	case PlacementRoundRobin:
		return &roundRobin{}, nil
	case PlacementLeastLoaded:
		return &leastLoaded{}, nil
	}
	return nil, fmt.Errorf("node: placement %q: want %s or %s", name, PlacementRoundRobin, PlacementLeastLoaded)
}

type roundRobin struct{ next atomic.Uint64 }

func (p *roundRobin) Place(candidates []Candidate) int {
	return int((p.next.Add(1) - 1) % uint64(len(candidates)))
}

// leastLoaded takes the node with the fewest prompt tokens to compute, which
// is what delays a first token (0.4 ms a token on an A10); nodes equal in that,
// as decode nodes are that compute no prompts, compare by legs in flight, and
// nodes equal in both take turns.
type leastLoaded struct{ next atomic.Uint64 }

func (p *leastLoaded) Place(candidates []Candidate) int {
	n := uint64(len(candidates))
	first := p.next.Add(1) - 1
	best := int(first % n)
	for i := uint64(1); i < n; i++ {
		j := int((first + i) % n)
		a, b := candidates[j], candidates[best]
		if a.WaitingTokens < b.WaitingTokens || a.WaitingTokens == b.WaitingTokens && a.InFlight < b.InFlight {
			best = j
		}
	}
	return best
}
