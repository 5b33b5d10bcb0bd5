package client

import (
	"cmp"
	"iter"
	"slices"
)

// A Flight holds how many requests were in flight over time.
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

// InFlight returns how many of the requests were in flight, from Sent to Finish. At one moment ends come before
// beginnings, so a request that takes the place of another does not overlap it. Skipped requests and those that
// ended when they were sent do not count.
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
