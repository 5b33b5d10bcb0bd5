package contention

import (
	"context"
	"fmt"
	"math"
	"time"

	"kvferry/cluster"
	"kvferry/handoff"
	"kvferry/load"
	"kvferry/placement"
	"kvferry/sim"
)

// simulated is n transfers in virtual time: when the first token is decoded of n requests on n
// prefill nodes and one decode node, less when it is where the network takes no time. That is kept
// in without, by n.
func simulated(ctx context.Context, cfg Config, by string, n int, oversubscription float64, without map[int][]time.Duration) (*Added, error) {
	over, err := decoded(ctx, cfg, by, n, oversubscription, cfg.rate)
	if err == nil && without[n] == nil {
		without[n], err = decoded(ctx, cfg, by, n, 1, math.MaxFloat64/2)
	}
	if err != nil {
		return nil, err
	}
	for i := range over {
		over[i] -= without[n][i]
	}
	return addedOf(over), nil
}

// decoded is when the first token is decoded of each of n requests that come at once, over NICs of
// a rate.
func decoded(ctx context.Context, cfg Config, by string, n int, oversubscription, rate float64) ([]time.Duration, error) {
	c := cluster.Spec{
		Costs: cfg.profile, Prefill: n, Decode: 1, Link: fmt.Sprintf("rate=%gB/s,latency=0s", rate), Oversubscription: oversubscription,
		MaxModelLen: max(cfg.Tokens+2, cfg.profile.MaxModelLen),
	}
	c.Proxy.Handoff, c.Proxy.Placement = by, placement.RoundRobin
	c.Node.KVBlocks = n*(cfg.profile.KVGeometry.Blocks(cfg.Tokens)+2) + 100
	s, err := c.Model()
	if err != nil {
		return nil, err
	}
	out := make([]time.Duration, n)
	var failed error
	s.OnOutcome = func(o *sim.Outcome) {
		out[o.Index] = o.TTFT()
		if by == handoff.Push.Name {
			out[o.Index] = o.E2EL() // of two tokens, the first comes from the prefill node
		}
		if o.Err != nil {
			failed = o.Err
		}
	}
	l, err := load.Spec{Kind: load.Random, Requests: n, Rate: math.Inf(1), Burstiness: 1, InputLen: cfg.Tokens, OutputLen: 2, Vocab: cfg.profile.Vocab}.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // it was drawn
	if _, err := sim.Run(ctx, s, l); err != nil {
		return nil, err
	}
	return out, failed
}
