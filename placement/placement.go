// Package placement chooses the node that takes a request. The proxy of a real
// cluster and the simulator of a virtual one use the same policies.
//
// A policy knows of a node what a [Candidate] says, and remembers what it placed.
// Policies do no I/O, have no clock, and are not safe for concurrent use. Sizes
// are tokens, prefixes are hashes of full blocks (package kvcache).
//
// A policy is a file here and an entry in the table below; flags, help and errors
// take its name from there.
package placement

import (
	"fmt"
	"strings"
	"time"

	"kvferry/kvcache"
)

// kinds is the table of policies, the simplest first.
var kinds = table[placer]{
	roundRobinKind,
	leastLoadedKind,
	prefixAwareKind,
	networkAwareKind,
	staticKind,
	adapterAffinityKind,
	dloraKind,
}

// A placer makes a policy for nodes with blocks of blockTokens tokens. compute: they compute
// prompts; else they only decode.
type placer = func(blockTokens int, compute bool) Policy

// Names lists the policies, the simplest first.
func Names() []string { return kinds.names() }

// Help lists them for the help of a flag, each with what it goes by.
func Help() string { return kinds.help() }

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
	// Blocks is how much prefix the node can have cached: the size of its KV pool, or of the
	// largest tier below that; 0 if unknown.
	Blocks int
	// Adapters are the LoRA adapters in the node's slots, or on their way there, and
	// AdapterSlots how many it has slots for; 0 if it has none, or nobody knows. The slice is the
	// node's, and never changes.
	Adapters     []string
	AdapterSlots int
	// LinkBytesPerSecond is what the node's link delivers now, 0 if nobody knows, and
	// LinkQueuedBytes the KV that is to cross it before that of a request placed now: what the
	// node last reported plus that of the legs it was sent since.
	LinkBytesPerSecond float64
	LinkQueuedBytes    int64
	// TokenTime is what the node takes for a prompt token at most, and SequenceTime what a
	// sequence more adds to each of its decode steps; 0 if nobody knows.
	TokenTime, SequenceTime time.Duration
}

// Transfer is how long bytes of KV take over the node's link, behind those that are queued there;
// 0 if nobody knows.
func (c *Candidate) Transfer(bytes int64) time.Duration {
	if c.LinkBytesPerSecond <= 0 || bytes <= 0 {
		return 0
	}
	return time.Duration(float64(c.LinkQueuedBytes+bytes) / c.LinkBytesPerSecond * 1e9)
}

// Request is what a policy may look at.
type Request struct {
	Tokens    int            // prompt length
	MaxTokens int            // to generate, at most
	KVBytes   int64          // of the prompt, where a hand-off moves it; else 0
	Adapter   string         // LoRA adapter; "" is the base model
	Prefix    []kvcache.Hash // of the prompt's full blocks; nil unless WantsPrefix
}

// A Policy chooses the node for a leg. A proxy keeps one for each role. What it chooses
// follows from what it was asked before and is asked now, so that runs repeat: one that
// draws lots has a seed of its own.
type Policy interface {
	// Place returns an index into candidates: those that may take the leg, and no other.
	// There is at least one, and their order stays while the cluster does not change.
	// The slice is the caller's; Place neither changes nor keeps it.
	Place(r Request, candidates []Candidate) int
	// WantsPrefix reports whether Place looks at Request.Prefix. Hashing a prompt
	// of 12,000 tokens takes 0.1 ms, so it is done only for who asks.
	WantsPrefix() bool
}

// New returns the policy of that name for nodes that compute prompts, or for nodes that
// only decode. blockTokens is the tokens in one of their KV blocks.
func New(name string, blockTokens int, compute bool) (Policy, error) {
	if place, ok := kinds.find(name); ok {
		return place(blockTokens, compute), nil
	}
	return nil, fmt.Errorf("placement %q is unknown: use %s", name, strings.Join(Names(), ", "))
}
