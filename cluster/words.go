package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"kvferry/engine/datasheet"
	"kvferry/internal/knob"
	"kvferry/sim"
)

// A Record is a cluster as results say it: its Spec with the defaults that depend on its
// profile filled in, and what the profile says besides.
type Record struct {
	Spec
	GPU         string
	NodeGPUs    int // of each node
	BlockTokens int
}

// Record returns the record of a cluster that is valid.
func (s *Spec) Record() Record {
	p, err := s.Engine()
	if err != nil {
		return Record{Spec: *s}
	}
	r := Record{Spec: *s, GPU: p.GPU, NodeGPUs: max(p.Costs.TensorParallel.Size, 1), BlockTokens: p.KVGeometry.BlockTokens}
	r.Profile, r.Costs, r.Scheduler, r.MaxModelLen = p.Name, p, p.Scheduler(), p.MaxModelLen
	r.MaxLoRAs, r.MaxCPULoRAs, r.MergeLoRAs = p.LoRA.MaxLoRAs, p.LoRA.MaxCPULoRAs, p.LoRA.Merged
	r.Node.KVBlocks = cmp.Or(s.Node.KVBlocks, p.Blocks())
	r.Node.PrefixCaching = s.Node.PrefixCaching || p.RadixCache()
	return r
}

// MarshalJSON writes the knobs of the model that have an effect, and the rest of the record.
func (r Record) MarshalJSON() ([]byte, error) {
	out := Knobs.For(Sim).JSON(&r.Spec)
	out["gpu"], out["tensor_parallel_size"], out["block_tokens"] = r.GPU, r.NodeGPUs, r.BlockTokens
	if one := r.NIC(); one != (sim.NIC{}) {
		out["nic"] = one
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON has written. The profile is a name only.
func (r *Record) UnmarshalJSON(text []byte) error {
	var besides struct {
		GPU         string `json:"gpu"`
		NodeGPUs    int    `json:"tensor_parallel_size"`
		BlockTokens int    `json:"block_tokens"`
	}
	var settings knob.Settings
	if err := errors.Join(json.Unmarshal(text, &besides), json.Unmarshal(text, &settings)); err != nil {
		return err
	}
	for _, name := range []string{"gpu", "tensor_parallel_size", "block_tokens", "nic"} {
		delete(settings, name)
	}
	var err error
	r.GPU, r.NodeGPUs, r.BlockTokens = besides.GPU, besides.NodeGPUs, besides.BlockTokens
	r.Spec, err = Knobs.For(Sim).Parse(settings)
	return err
}

// Nodes returns how many nodes the cluster has.
func (s *Spec) Nodes() int { return s.Prefill + s.Decode + s.Nondisagg }

// NIC returns the model of one NIC, zero for this machine's network and for nodes that move no KV.
func (r *Record) NIC() sim.NIC {
	if !r.MovesKV() || r.Costs == nil {
		return sim.NIC{}
	}
	n, err := nic(r.Costs, r.Link)
	if err != nil {
		return sim.NIC{}
	}
	return n
}

// Bandwidth returns what the cluster's NICs could carry in bytes per second, for comparing prices.
func (r *Record) Bandwidth() float64 {
	if r.Nondisagg > 0 {
		return 0
	}
	return float64(max(r.NICs, 1)) * r.NIC().BytesPerSecond * float64(r.Nodes())
}

// String describes the cluster in a sentence.
func (r *Record) String() string {
	var b strings.Builder
	if r.Nondisagg > 0 {
		fmt.Fprintf(&b, "%d nondisagg", r.Nondisagg)
		if r.Node.Chunked {
			b.WriteString(", chunked prefill")
		}
	} else {
		fmt.Fprintf(&b, "%d prefill + %d decode, hand-off %s, ", r.Prefill, r.Decode, r.Proxy.WithDefaults().Handoff)
		one := r.NIC()
		if one.BytesPerSecond > 0 {
			fmt.Fprintf(&b, "%d x %s a node", max(r.NICs, 1), rateText(one))
		} else {
			b.WriteString("this machine's network")
		}
		if one.Latency > 0 {
			fmt.Fprintf(&b, " (%v)", one.Latency)
		}
		for i, text := range r.DecodeLinks {
			n, _ := nic(r.Costs, text) // valid
			fmt.Fprintf(&b, "%s%s", map[bool]string{true: ", decode nodes in turn ", false: " and "}[i == 0], rateText(n))
		}
		if c := r.Proxy.ConditionalDisaggregation; c > 0 {
			fmt.Fprintf(&b, ", prompts of up to %d tokens computed where they are decoded", c)
		}
		if r.Oversubscription > 1 {
			fmt.Fprintf(&b, ", leaf switches oversubscribed %g:1", r.Oversubscription)
		}
	}
	if r.NodeGPUs > 1 {
		fmt.Fprintf(&b, ", %d GPUs a node", r.NodeGPUs)
	}
	if r.MaxLoRAs > 0 {
		fmt.Fprintf(&b, ", %d slots for LoRA adapters a node", r.MaxLoRAs)
	}
	if r.MergeLoRAs != "" {
		b.WriteString(", LoRA adapters merged: " + string(r.MergeLoRAs))
	}
	if m := r.Proxy.Migration.WithDefaults(); m.Migrates() {
		fmt.Fprintf(&b, ", migration %s, every %v beyond %d requests", m.Policy, m.Interval, m.Threshold)
	}
	placement := r.Proxy.WithDefaults().Placement
	fmt.Fprintf(&b, ", placement %s, scheduler %s, prefix caching %s, %d KV blocks of %d tokens, max_model_len %d", placement, r.Scheduler,
		map[bool]string{true: "on", false: "off"}[r.Node.PrefixCaching], r.Node.KVBlocks, r.BlockTokens, r.MaxModelLen)
	if strings.Contains(r.Profile, datasheet.Mark) {
		b.WriteString(" (" + datasheet.KnownError + ")")
	}
	return b.String()
}

// rateText is a NIC's rate as people name it.
func rateText(n sim.NIC) string { return fmt.Sprintf("%.4g GB/s", n.BytesPerSecond/1e9) }
