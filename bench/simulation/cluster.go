package simulation

import (
	"strings"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/placement"
	"kvferry/sim"
)

// A Cluster is what a command line says of nodes that are simulated.
type Cluster struct {
	Profile                    *engine.Profile
	Scheduler                  string // see engine.Options; the profile's if empty
	Prefill, Decode, Nondisagg int
	Chunked                    bool
	Handoff                    string
	Placement                  string
	ConditionalDisaggregation  int
	Migration                  placement.MigrationConfig
	PrefixCaching              bool
	KVBlocks                   int            // of a node; the profile's if 0
	MaxLoRAs, MaxCPULoRAs      int            // see engine.LoRA; the profile's if 0
	MergeLoRAs                 engine.Merging // likewise
	Ranks                      engine.Ranks   // of the LoRA adapters that are asked for
	MaxModelLen                int            // the profile's if 0
	NICs                       int            // of a prefill or decode node
	NIC                        sim.NIC
	DecodeNICs                 []sim.NIC // of decode nodes instead; this and the next two: see sim.Config
	RPC                        time.Duration
	Tiers                      kvcache.TierConfig
	Oversubscription           float64
}

// maxNICs of a node: more than any server has slots for.
const maxNICs = 64

// Fitted is the profile with the scheduler and the model length that were asked for. A step must
// be able to hold the longest prompt.
func (c *Cluster) Fitted() *engine.Profile {
	fitted := c.Profile.WithScheduler(c.Scheduler).WithLoRA(c.MaxLoRAs, c.MaxCPULoRAs, c.MergeLoRAs)
	if c.MaxModelLen == 0 || c.MaxModelLen == fitted.MaxModelLen {
		return fitted
	}
	p := *fitted
	p.MaxModelLen = c.MaxModelLen
	p.MaxBatchedTokens = max(p.MaxBatchedTokens, c.MaxModelLen)
	return &p
}

// Adapt has the cluster serve the LoRA adapters that a load asks for, and takes their ranks off
// the load's names: those are NAME, or NAME=RANK.
func (c *Cluster) Adapt(l *load.Spec, bad *config.Faults) {
	names := make([]string, len(l.Adapters.Names))
	c.Ranks = engine.Ranks{}
	for i, text := range l.Adapters.Names {
		name, rank, err := engine.ParseAdapter(text)
		bad.Check("--lora-modules", err)
		names[i], c.Ranks[name] = name, rank
	}
	if len(names) > 0 {
		l.Adapters.Names = names
	}
}

// FitLoad raises MaxModelLen to what the longest request of a load needs, prompt and output
// together, as far as a node's pool holds it.
func (c *Cluster) FitLoad(longest int) {
	if c.MaxModelLen != 0 || longest <= c.Profile.MaxModelLen {
		return
	}
	blocks := c.KVBlocks
	config.Default(&blocks, c.Profile.Blocks())
	c.MaxModelLen = max(min(longest, blocks*c.Profile.KVGeometry.BlockTokens), c.Profile.MaxModelLen)
}

// Config is the cluster as package sim takes it. Faults of the hand-off and the NICs are in bad.
func (c *Cluster) Config(bad *config.Faults) sim.Config {
	cfg := sim.Config{
		Profile: c.Fitted(), Prefill: c.Prefill, Decode: c.Decode, Nondisagg: c.Nondisagg, Chunked: c.Chunked,
		Placement: c.Placement, Migration: c.Migration, PrefixCaching: c.PrefixCaching, KVBlocks: c.KVBlocks, RPC: c.RPC, Oversubscription: c.Oversubscription,
		Tiers: c.Tiers, Ranks: c.Ranks,
	}
	if c.Nondisagg > 0 && !c.Migration.Migrates() {
		return cfg
	}
	if c.Nondisagg == 0 {
		var err error
		cfg.ConditionalDisaggregation, cfg.DecodeNICs = c.ConditionalDisaggregation, c.DecodeNICs
		cfg.Handoff, err = handoff.Parse(c.Handoff)
		bad.Check("Handoff", err)
	}
	config.Between(bad, "NICs", c.NICs, 1, maxNICs)
	for range min(max(c.NICs, 1), maxNICs) {
		cfg.NICs = append(cfg.NICs, c.NIC)
	}
	return cfg
}

// Validate lists every fault by its field, as a [config.Invalid]. A profile that is set
// is valid.
func (c *Cluster) Validate() error {
	var bad, cluster config.Faults
	if c.Profile == nil {
		bad.Add("Profile", nil, "say what the modelled GPU costs")
		return bad.Err("simulation.Cluster")
	}
	bad.Check("Profile", c.Profile.WithScheduler(c.Scheduler).WithLoRA(c.MaxLoRAs, c.MaxCPULoRAs, c.MergeLoRAs).Validate())
	cfg := c.Config(&bad)
	cluster.Check("", cfg.Validate())
	nic := false
	for _, f := range cluster {
		_, inner, ofNIC := strings.Cut(f.Field, "].") // NICs are all alike here
		switch {
		case f.Field == "Handoff": // said above
		case !ofNIC:
			bad.Check(f.Field, f.Err)
		case !nic:
			nic = true
			bad.Check("NIC."+inner, f.Err)
		}
	}
	bad.Refuse(c.MaxModelLen < 0, "MaxModelLen", c.MaxModelLen, "use 1 or more")
	return bad.Err("simulation.Cluster")
}
