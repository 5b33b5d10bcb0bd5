package load

import (
	"math/rand/v2"
	"slices"

	"kvferry/internal/config"
)

// Workers are several servers, and which of them each request goes to. A request that
// follows another goes to the same one: its conversation's KV is there. Choices that need
// to know how busy a server is are the client's, not the load's.
type Workers struct {
	Count  int    // servers; 0 and 1 are one
	Choice string // one of the Worker constants; empty is WorkerRoundRobin
}

// Values of Workers.Choice.
const (
	// WorkerRoundRobin: one after the other.
	WorkerRoundRobin = "round-robin"
	// WorkerRandom: each as likely as the other.
	WorkerRandom = "random"
	// WorkerAdapter: the place of the request's adapter in Adapters.Names, modulo the number
	// of servers, so that an adapter is on one server only; the model itself is on the first.
	// The static assignment of the published LoRA runs.
	WorkerAdapter = "adapter"
)

// check notes what is wrong.
func (w Workers) check(bad *config.Faults) {
	config.Between(bad, "Workers.Count", w.Count, 0, 1<<16)
	switch w.Choice {
	case "", WorkerRoundRobin, WorkerRandom, WorkerAdapter:
	default:
		bad.Add("Workers.Choice", w.Choice, "use %s", config.Or([]string{WorkerRoundRobin, WorkerRandom, WorkerAdapter}))
	}
}

// assign puts workers on a source's requests.
func (w Workers) assign(s Spec, source Source) Source {
	next, follow := -1, following{}
	choose := func(*Request) int { next = (next + 1) % w.Count; return next }
	switch w.Choice {
	case WorkerAdapter:
		choose = func(r *Request) int { return max(slices.Index(s.Adapters.Names, r.Adapter), 0) % w.Count }
	case WorkerRandom:
		rng := rand.New(rand.NewPCG(s.Seed, 0x6b7666776f726b0a))
		choose = func(*Request) int { return rng.IntN(w.Count) }
	}
	return edit(source, func(r *Request) (bool, error) {
		r.Worker = follow.next(r, func() int { return choose(r) })
		return true, nil
	})
}
