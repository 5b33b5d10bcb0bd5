package sglang

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/load"
)

// A Trace is what a run with LoRA adapters was: lora_bench_multi.py with calls of Azure's functions
// as arrivals. The record has neither the trace nor the lengths that it drew from a data set, so
// both are rebuilt from what it counts.
//
// Each adapter's gaps are exponential and drawn from the same seed, whatever the adapter's rate
// (see [load.Functions]). So the requests that each adapter got tell the rates: Shares are those
// that give the counts of both lengths of run.
//
// Lengths are quantiles of a log-normal distribution, in an order that is drawn. Its median, its
// sigma below that and the longest length are parameters of the fit, the same for all runs; sigma above
// the median is such that the sum is the record's, to the token.
type Trace struct {
	// Servers are those of each adapter, by number: as the record says that they were placed at first, and as
	// nothing moved them. Of several each has its turn.
	Servers  [][]int `json:"servers"`
	Shares   []int   `json:"shares"`         // of adapters, in the arrivals
	Requests []int   `json:"requests"`       // that each adapter got, as the record says
	LastS    float64 `json:"last_arrival_s"` // likewise
	Failed   int     `json:"failed_requests"`
}

// The lengths of the fit.
var (
	promptSpread = spread{median: 200, sigma: 1.1, longest: 2048}
	answerSpread = spread{median: 22.5, sigma: 1.98, longest: 725}
)

// orderSeed is of the lengths' order. Who comes when decides the medians and the ends of the short
// runs: of the seeds 1 to 60 it is the one that gives them best.
const orderSeed = 50

// arrivals are the calls of the trace in file, or if that is empty the rebuilt ones.
func (t *Trace) arrivals(file string) load.Functions {
	return load.Functions{File: file, Shares: t.Shares, Start: "0.0.0", End: "0.0.60", Interval: time.Hour, Rate: 4, CV: 1, Stride: 1}
}

// servers is how many there are.
func (t *Trace) servers() int { return slices.Max(slices.Concat(t.Servers...)) + 1 }

// adapterName is the name of an adapter at one of its servers: placement.Static goes by the number at its end.
func adapterName(adapter, server int) string { return fmt.Sprintf("lora%d-%d", adapter, server) }

// ranks are those of all adapters, by name. The record has none.
func (t *Trace) ranks() engine.Ranks {
	ranks := engine.Ranks{}
	for adapter, servers := range t.Servers {
		for _, server := range servers {
			ranks[adapterName(adapter, server)] = engine.DefaultRank
		}
	}
	return ranks
}

// traced is what the run's client asked, with arrivals of the file if there is one. Those that
// failed are left out, as many after each other: the record does not say which they were.
func (p *Published) traced(file string, vocab int) (load.Load, error) {
	calls, err := p.Trace.arrivals(file).Calls(len(p.Trace.Shares), p.NumPrompts)
	if err != nil {
		return load.Load{}, err
	}
	n := p.Counts.Successful
	rng := rand.New(rand.NewPCG(orderSeed, 0))
	prompts := promptSpread.lengths(rng, n, p.Counts.Input)
	answers := answerSpread.lengths(rng, n, p.Counts.Retokenized)
	requests := make(load.List, 0, n)
	turns := make([]int, len(p.Trace.Servers))
	for i := range p.NumPrompts {
		at, adapter, err := calls.Next()
		if err != nil {
			return load.Load{}, err
		}
		if f := p.Trace.Failed; f > 0 && (i+1)%(p.NumPrompts/f) == 0 {
			continue
		}
		on := p.Trace.Servers[adapter]
		server := on[turns[adapter]%len(on)]
		turns[adapter]++
		r := load.Request{At: time.Duration(at * 1e9), Adapter: adapterName(adapter, server), Prompt: make([]kvcache.Token, prompts[len(requests)]), MaxTokens: answers[len(requests)]}
		for j := range r.Prompt {
			r.Prompt[j] = kvcache.Token(rng.IntN(vocab))
		}
		requests = append(requests, r)
	}
	return load.Load{Source: &requests, Count: n}, nil
}

// A spread is a log-normal distribution of lengths in tokens, cut at the longest. Above the
// median its sigma is what a total leaves.
type spread struct {
	median, sigma float64
	longest       int
}

// lengths are n quantiles of the distribution whose sum is total, in an order that is drawn.
func (s spread) lengths(rng *rand.Rand, n, total int) []int {
	all := make([]int, n)
	fill := func(above float64) (sum int) {
		for i := range all {
			z := math.Sqrt2 * math.Erfinv(2*(float64(i)+0.5)/float64(n)-1)
			sigma := s.sigma
			if z > 0 {
				sigma = above
			}
			all[i] = int(min(max(1, math.Round(s.median*math.Exp(sigma*z))), float64(s.longest)))
			sum += all[i]
		}
		return sum
	}
	low, high := 0.0, 20.0
	for range 60 {
		if middle := (low + high) / 2; fill(middle) <= total {
			low = middle
		} else {
			high = middle
		}
	}
	missing := total - fill(low)
	for i := n - 1; missing > 0 && i >= 0; i-- { // rounding: the longest that are not cut get it
		if all[i] < s.longest {
			all[i]++
			missing--
		}
	}
	rng.Shuffle(n, func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// asked opens the run's load.
func (p *Published) asked(cfg *Config, server *engine.Profile) (load.Load, error) {
	if p.Trace != nil {
		return p.traced(cfg.TracePath, server.Vocab)
	}
	return p.Load(server.Vocab).Open()
}

// generated is how many tokens the record's server generated. The client of the runs with
// adapters counts as such what it asked for, and what came only by counting its text again.
func (p *Published) generated() int {
	if p.Trace != nil {
		return p.Counts.Retokenized
	}
	return p.Counts.Generated
}

// rebuilt and recorded say where the arrivals of a row come from.
const (
	rebuilt  = "rebuilt"  // from what the record counts
	recorded = "recorded" // the trace that it names
)

// source says where the arrivals come from; empty where they are the record's own.
func (p *Published) source(cfg *Config) string {
	switch {
	case p.Trace == nil:
		return ""
	case cfg.TracePath == "":
		return rebuilt
	}
	return recorded
}
