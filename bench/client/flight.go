package client

import (
	"cmp"
	"iter"
	"slices"
)

// A Flight is how many requests were in flight, and when.
type Flight struct {
	Steps []Step // in order, each from the end of the one before; the last has no length and no request
	Peak  int
	Area  float64 // request-seconds
}

// A Step is an interval, in seconds since the run's start, in which the requests in flight were the same.
type Step struct {
	From, To float64
	Requests int
}

// InFlight sweeps over the moments at which requests were sent and over. Of two at one moment the end comes
// first: a request that takes the place of another is not at once with it. Requests that ended when they were
// sent were never in flight.
func InFlight(records iter.Seq[*Record]) Flight {
	type edge struct {
		at    float64
		delta int
	}
	var edges []edge
	var f Flight
	for r := range records {
		if !r.Skipped && r.Finish > r.Sent {
			edges = append(edges, edge{r.Sent, 1}, edge{r.Finish, -1})
			f.Area += r.Finish - r.Sent
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.delta, b.delta)) })
	n := 0
	for i, e := range edges {
		n += e.delta
		f.Peak = max(f.Peak, n)
		if next := edges[min(i+1, len(edges)-1)].at; next > e.at || i+1 == len(edges) {
			f.Steps = append(f.Steps, Step{e.at, next, n})
		}
	}
	return f
}
