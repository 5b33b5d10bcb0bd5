package sim

import (
	"context"
	"time"

	"kvferry/connector"
	"kvferry/engine"
	"kvferry/kvcache"
	"kvferry/load"
)

// An Outcome is a request that has ended.
type Outcome struct {
	Index                int    // of the load, from 0
	ID                   string // the load's
	Adapter              string // LoRA adapter; empty: the model itself
	PromptTokens         int
	MaxTokens            int             // that were asked for
	Tokens               int             // that came
	Stopped              bool            // the model ended it, at MaxTokens or before; see package eos
	Cached               int             // prompt tokens that the computing node's prefix cache had
	Due                  time.Duration   // by the load's times
	Arrived, First, Last time.Duration   // Arrived is later than Due if there was no room for it (load.Load.InFlight)
	TokenTimes           []time.Duration // if Config.RecordTokens
	Breakdown            connector.Breakdown
	Migrations           int           // how often it went on on another node
	Paused               time.Duration // the times between its last token there and its first here, in all
	Err                  error         // why it was refused, nil if it ended well
}

// TTFT is the time to the first token.
func (o *Outcome) TTFT() time.Duration { return o.First - o.Arrived }

// TPOT is the mean time between tokens: (last - first) / (tokens - 1), 0 for a
// request of one token.
func (o *Outcome) TPOT() time.Duration {
	if o.Tokens < 2 {
		return 0
	}
	return (o.Last - o.First) / time.Duration(o.Tokens-1)
}

// E2EL is the end-to-end latency.
func (o *Outcome) E2EL() time.Duration { return o.Last - o.Arrived }

// Stats are what a run amounts to.
type Stats struct {
	Requests, Ended, Failed int
	Duration                time.Duration // to the end of the last request
	KVBytes                 int64         // moved between nodes by hand-offs
	Migrations              int           // requests that went on on another node, each time
	MigratedBytes           int64         // moved for that
	Events                  uint64        // of the simulation
	Nodes                   []NodeStats
}

// NodeStats are one node's.
type NodeStats struct {
	Name, Role      string
	PrefillBusy     time.Duration // computing prompts, alone or mixed with decodes
	DecodeBusy      time.Duration // computing decodes alone
	PrefillSteps    int
	DecodeSteps     int
	Blocks          int     // of the pool
	PeakBlocks      int     // used at once
	BlockSeconds    float64 // integral of used blocks
	Preemptions     uint64
	AdapterLoads    uint64            // of LoRA adapters, into slots
	AdapterTime     time.Duration     `json:",omitzero"` // that steps took more for these
	AdapterSwitches uint64            // of what is merged
	PrefixQueries   uint64            // tokens asked of the prefix cache
	PrefixHits      uint64            // tokens it had
	Tiers           kvcache.TierStats `json:",omitzero"`
	Sent            []float64         // bytes by NIC
	Received        []float64
}

func (s *NodeStats) steps(k engine.Kind, d time.Duration) {
	if k == engine.Decode {
		s.DecodeSteps++
		s.DecodeBusy += d
		return
	}
	s.PrefillSteps++
	s.PrefillBusy += d
}

// Run goes through the load and returns what the cluster did. The load is the caller's to
// close. When ctx is done it
// returns what was done so far, and ctx's error.
func Run(ctx context.Context, cfg Config, l load.Load) (*Stats, error) {
	c, err := newCluster(cfg, l)
	if err != nil {
		return nil, err
	}
	err = c.run(ctx)
	for _, n := range c.nodes {
		n.catchUp()
		c.disperse(n.sending)
		n.count(c.now)
		load := n.core.Load()
		n.stats.Preemptions, n.stats.AdapterLoads, n.stats.AdapterSwitches = load.Preemptions, load.AdapterLoads, load.AdapterSwitches
		n.stats.AdapterTime = load.AdapterLoading
		ps := n.pool.Stats()
		n.stats.PrefixQueries, n.stats.PrefixHits, n.stats.Tiers = ps.PrefixQueries, ps.PrefixHits, n.tiers.Stats()
		for i := range n.tx {
			n.stats.Sent = append(n.stats.Sent, n.tx[i].Bytes())
			n.stats.Received = append(n.stats.Received, n.rx[i].Bytes())
		}
		c.stats.Nodes = append(c.stats.Nodes, n.stats)
	}
	return &c.stats, err
}
