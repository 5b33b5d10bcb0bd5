package result

import (
	"math/rand/v2"
	"slices"

	"kvferry/bench/stats"
)

// bootstrapped lists the figures of each draw, in this order: the mean, and percentiles.
var bootstrapped = []struct {
	key string // in the figures' names
	p   float64
}{{"mean", -1}, {"median", 50}, {"p90", 90}, {"p95", 95}, {"p99", 99}}

// A pool is a latency of one run, from which requests are drawn. It is sorted once: a draw only
// counts how often each request was taken, and its percentiles are found on one walk over all
// values, so that it costs a pass over them and no sorting.
type pool struct {
	sorted []float64 // all values, in ascending order
	owner  []int     // whose each of them is
	sums   []float64 // of each request's values
	counts []int     // and how many it has
}

// newPool takes the values of each request.
func newPool(requests [][]float64) *pool {
	type value struct {
		v     float64
		owner int
	}
	var all []value
	p := &pool{sums: make([]float64, len(requests)), counts: make([]int, len(requests))}
	for i, list := range requests {
		for _, v := range list {
			all = append(all, value{v, i})
			p.sums[i] += v
		}
		p.counts[i] = len(list)
	}
	slices.SortFunc(all, func(a, b value) int {
		switch {
		case a.v < b.v:
			return -1
		case a.v > b.v:
			return 1
		}
		return a.owner - b.owner
	})
	p.sorted, p.owner = make([]float64, len(all)), make([]int, len(all))
	for i, v := range all {
		p.sorted[i], p.owner[i] = v.v, v.owner
	}
	return p
}

// requests is how many have a value.
func (p *pool) requests() (n int) {
	for _, c := range p.counts {
		if c > 0 {
			n++
		}
	}
	return n
}

// whole are the statistics of all values.
func (p *pool) whole() []float64 {
	sum := 0.0
	for _, s := range p.sums {
		sum += s
	}
	out := []float64{sum / float64(len(p.sorted))}
	for _, s := range bootstrapped[1:] {
		out = append(out, stats.Percentile(p.sorted, s.p))
	}
	return out
}

// draw draws as many requests as there are, with replacement, and returns the statistics of
// their values; false if none of those that were drawn has a value. times is room for a count
// of each request.
func (p *pool) draw(rng *rand.Rand, times []int) (out []float64, ok bool) {
	clear(times)
	for range times {
		times[rng.IntN(len(times))]++
	}
	sum, n := 0.0, 0
	for i, t := range times {
		sum += float64(t) * p.sums[i]
		n += t * p.counts[i]
	}
	if n == 0 {
		return nil, false
	}
	out = append(out, sum/float64(n))
	// numpy's linear percentile of a list that has each value as often as its request was drawn:
	// the values at two neighbouring ranks are looked for on one walk.
	passed, at := 0, -1
	walk := func(rank int) float64 {
		for passed <= rank {
			at++
			passed += times[p.owner[at]]
		}
		return p.sorted[at]
	}
	for _, s := range bootstrapped[1:] {
		rank := s.p / 100 * float64(n-1)
		low := int(rank)
		a := walk(low)
		b := a
		if low+1 < n {
			// The next percentile may lie between the same two ranks.
			kept, keptAt := passed, at
			b = walk(low + 1)
			passed, at = kept, keptAt
		}
		out = append(out, a+(rank-float64(low))*(b-a))
	}
	return out, true
}

// work is how many values a bootstrap looks at, so that a run of a million gaps is compared in
// seconds: with as many values, fewer draws are as good, for a percentile of them hardly
// varies.
const (
	work       = 400e6
	leastDraws = 200
)

// draws is how many times requests are drawn of two pools.
func draws(wanted int, a, b *pool) int {
	return max(min(wanted, int(work/float64(len(a.sorted)+len(b.sorted)+1))), min(leastDraws, wanted))
}

// intervals are, for each statistic, the middle share of 100 (b/a - 1) over draws of both
// runs' requests; nil where a draw had nothing to divide by. paired draws the same requests of
// both.
func intervals(a, b *pool, paired bool, share float64, n int, seed uint64) [][]float64 {
	first, second := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	if paired {
		second = rand.New(rand.NewPCG(seed, 1))
	}
	timesA, timesB := make([]int, len(a.sums)), make([]int, len(b.sums))
	differences := make([][]float64, len(bootstrapped))
	for range n {
		of, okA := a.draw(first, timesA)
		against, okB := b.draw(second, timesB)
		if !okA || !okB {
			continue
		}
		for i := range bootstrapped {
			if of[i] > 0 {
				differences[i] = append(differences[i], 100*(against[i]/of[i]-1))
			}
		}
	}
	out := make([][]float64, len(bootstrapped))
	for i, d := range differences {
		if len(d) < n/2 || len(d) == 0 {
			continue
		}
		slices.Sort(d)
		tail := 100 * (1 - share) / 2
		out[i] = []float64{stats.Percentile(d, tail), stats.Percentile(d, 100-tail)}
	}
	return out
}
