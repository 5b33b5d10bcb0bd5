// Package placement chooses the node that takes a request. The proxy of a real
// cluster and the simulator of a virtual one use the same policies.
//
//	round-robin    nodes take turns
//	least-loaded   the node with the fewest prompt tokens still to compute
//	prefix-aware   the node that can begin with this prompt's own tokens soonest:
//	               what it still has to compute, less what its prefix cache saves
//
// A policy knows of a node what a [Candidate] says, and remembers what it placed.
// Policies do no I/O, have no clock, and are not safe for concurrent use. Sizes
// are tokens, prefixes are hashes of full blocks (package kvcache).
package placement

import (
	"fmt"
	"strings"

	"kvferry/kvcache"
)

// Names of the policies.
const (
	RoundRobin  = "round-robin"
	LeastLoaded = "least-loaded"
	PrefixAware = "prefix-aware"
)

// Names lists them, the simplest first.
func Names() []string { return []string{RoundRobin, LeastLoaded, PrefixAware} }

// Candidate is what a policy knows of a node that could take a leg.
type Candidate struct {
	// ID is the node's name, by which a policy remembers what it placed there.
	ID string
	// WaitingTokens are the prompt tokens the node has still to compute: what
	// it last reported plus what it was sent since, so that a burst inside one
	// of its iterations does not all go to one node.
	WaitingTokens int
	// InFlight counts the legs the node holds.
	InFlight int
	// Blocks is the size of the node's KV pool, and so how much prefix it can
	// have cached; 0 if unknown.
	Blocks int
}

// Request is what a policy may look at.
type Request struct {
	Tokens int            // prompt length
	Prefix []kvcache.Hash // of the prompt's full blocks; nil unless WantsPrefix
}

// A Policy chooses the node for a leg. A proxy keeps one for each role.
type Policy interface {
	// Place returns an index into candidates, which has at least one element
	// and keeps its order while the cluster does not change.
	Place(r Request, candidates []Candidate) int
	// WantsPrefix reports whether Place looks at Request.Prefix. Hashing a prompt
	// of 12,000 tokens takes 0.1 ms, so it is done only for who asks.
	WantsPrefix() bool
}

// New returns the policy of that name for nodes that compute prompts, or for
// nodes that only decode. Of the latter prefix-aware treats all alike, as
// least-loaded does: they compute no prompts that a cache could save, and equal
// prefixes sent to one of them would only crowd it.
func New(name string, blockTokens int, compute bool) (Policy, error) {
	switch {
	case name == RoundRobin:
		return &roundRobin{}, nil
	case name == LeastLoaded || name == PrefixAware && !compute:
		return &leastLoaded{}, nil
	case name == PrefixAware:
		return newPrefixAware(blockTokens), nil
	}
	return nil, fmt.Errorf("placement %q is unknown: use %s", name, strings.Join(Names(), ", "))
}

type roundRobin struct{ next int }

func (p *roundRobin) Place(_ Request, candidates []Candidate) int {
	p.next++
	return (p.next - 1) % len(candidates)
}

func (p *roundRobin) WantsPrefix() bool { return false }

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
