package simulation

import (
	"cmp"
	"fmt"
	"strings"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/sim"
)

// ClusterRecord is how the cluster was asked for.
type ClusterRecord struct {
	Profile       string    `json:"profile"`
	GPU           string    `json:"gpu"`
	Scheduler     string    `json:"scheduler"`
	Prefill       int       `json:"prefill"`
	Decode        int       `json:"decode"`
	Nondisagg     int       `json:"nondisagg"`
	NodeGPUs      int       `json:"tensor_parallel_size"` // of each node
	Chunked       bool      `json:"chunked"`
	Handoff       string    `json:"handoff"`
	Placement     string    `json:"placement"`
	Conditional   int       `json:"conditional_disaggregation,omitempty"`
	Migration     string    `json:"migration,omitempty"`
	PrefixCaching bool      `json:"prefix_caching"`
	KVBlocks      int       `json:"kv_blocks"`
	BlockTokens   int       `json:"block_tokens"`
	MaxModelLen   int       `json:"max_model_len"`
	MaxLoRAs      int       `json:"max_loras,omitempty"`     // slots of a node for LoRA adapters; 0: any number
	MaxCPULoRAs   int       `json:"max_cpu_loras,omitempty"` // in its host memory
	MergeLoRAs    string    `json:"merge_loras,omitempty"`   // into the model's weights
	NICs          int       `json:"nics"`
	NIC           sim.NIC   `json:"nic"`                   // none: this machine's network, in real time
	DecodeNICs    []sim.NIC `json:"decode_nics,omitempty"` // of decode nodes instead, in turn
	RPCUS         float64   `json:"rpc_us"`

	Tiers            *kvcache.TierConfig `json:"tiers,omitempty"`
	Oversubscription float64             `json:"oversubscription,omitempty"` // of the leaf switches; 0: they hold nothing back
}

func (c *ClusterRecord) nodes() int { return c.Prefill + c.Decode + c.Nondisagg }

// network is what the cluster's NICs could carry, for comparing prices.
func (c *ClusterRecord) network() float64 {
	if c.Nondisagg > 0 {
		return 0
	}
	return float64(c.NICs) * c.NIC.BytesPerSecond * float64(c.nodes())
}

func (c *ClusterRecord) String() string {
	var b strings.Builder
	if c.Nondisagg > 0 {
		fmt.Fprintf(&b, "%d nondisagg", c.Nondisagg)
		if c.Chunked {
			b.WriteString(", chunked prefill")
		}
	} else {
		fmt.Fprintf(&b, "%d prefill + %d decode, hand-off %s, ", c.Prefill, c.Decode, c.Handoff)
		if c.NIC.BytesPerSecond > 0 {
			fmt.Fprintf(&b, "%d x %s a node", c.NICs, rateText(c.NIC.BytesPerSecond))
		} else {
			b.WriteString("this machine's network")
		}
		if c.NIC.Latency > 0 {
			fmt.Fprintf(&b, " (%v)", c.NIC.Latency)
		}
		for i, n := range c.DecodeNICs {
			fmt.Fprintf(&b, "%s%s", map[bool]string{true: ", decode nodes in turn ", false: " and "}[i == 0], rateText(n.BytesPerSecond))
		}
		if c.Conditional > 0 {
			fmt.Fprintf(&b, ", prompts of up to %d tokens computed where they are decoded", c.Conditional)
		}
		if c.Oversubscription > 1 {
			fmt.Fprintf(&b, ", leaf switches oversubscribed %g:1", c.Oversubscription)
		}
	}
	if c.NodeGPUs > 1 {
		fmt.Fprintf(&b, ", %d GPUs a node", c.NodeGPUs)
	}
	if c.MaxLoRAs > 0 {
		fmt.Fprintf(&b, ", %d slots for LoRA adapters a node", c.MaxLoRAs)
	}
	if c.MergeLoRAs != "" {
		b.WriteString(", LoRA adapters merged: " + c.MergeLoRAs)
	}
	if c.Migration != "" {
		fmt.Fprintf(&b, ", migration %s", c.Migration)
	}
	if c.Placement != "" {
		b.WriteString(", placement " + c.Placement)
	}
	fmt.Fprintf(&b, ", scheduler %s, prefix caching %s, %d KV blocks of %d tokens, max_model_len %d", c.Scheduler,
		map[bool]string{true: "on", false: "off"}[c.PrefixCaching], c.KVBlocks, c.BlockTokens, c.MaxModelLen)
	return b.String()
}

// rateText is bytes a second as people name NICs.
func rateText(bytesPerSecond float64) string { return fmt.Sprintf("%.4g GB/s", bytesPerSecond/1e9) }

// Record is the cluster as results say it, of one that is valid.
func (c *Cluster) Record() ClusterRecord {
	cfg := c.Config(&config.Faults{})
	p := cfg.Profile
	r := ClusterRecord{
		Profile: p.Name, GPU: p.GPU, Scheduler: p.Scheduler(), Prefill: c.Prefill, Decode: c.Decode, Nondisagg: c.Nondisagg, NodeGPUs: max(p.Costs.TensorParallel.Size, 1), Chunked: c.Chunked,
		Handoff: cfg.Handoff.String(), Placement: c.Placement, PrefixCaching: c.PrefixCaching || p.RadixCache(), KVBlocks: cmp.Or(c.KVBlocks, p.Blocks()),
		BlockTokens: p.KVGeometry.BlockTokens, MaxModelLen: p.MaxModelLen, MaxLoRAs: p.LoRA.MaxLoRAs, MaxCPULoRAs: p.LoRA.MaxCPULoRAs, MergeLoRAs: string(p.LoRA.Merged), RPCUS: float64(c.RPC) / 1e3,
	}
	if c.Tiers.Asked() {
		r.Tiers = &c.Tiers
	}
	if c.Nondisagg == 0 {
		r.NICs, r.NIC, r.Oversubscription = c.NICs, c.NIC, c.Oversubscription
		r.DecodeNICs, r.Conditional = c.DecodeNICs, c.ConditionalDisaggregation
	}
	if m := c.Migration.WithDefaults(); m.Migrates() {
		r.Migration = fmt.Sprintf("%s, every %v beyond %d requests", m.Policy, m.Interval, m.Threshold)
		r.NICs, r.NIC = c.NICs, c.NIC
	}
	return r
}
