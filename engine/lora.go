package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
)

// LoRA says what LoRA adapters cost on the modelled GPU, and for how many it has room. The
// zero value is a GPU on which they cost nothing, and which has room for all.
//
// An adapter of rank r adds a matrix of r columns and one of r rows to each weight matrix that
// it was trained for (Hu et al. 2021): its bytes and its arithmetic are in proportion to r. A
// step can use the adapters that are in the GPU's slots. One that is not there is loaded as the
// step begins, from host memory or from disk, and everything in the step waits for it, as it
// does with vLLM and SGLang; the one that was used longest ago makes room.
type LoRA struct {
	// MaxLoRAs is how many slots there are, and how many adapters a batch has at most:
	// --max-loras. 0: any number.
	MaxLoRAs int `json:"max_loras,omitempty"`
	// MaxCPULoRAs is how many adapters host memory keeps, those in slots among them:
	// --max-cpu-loras. The others come from disk. 0: any number.
	MaxCPULoRAs int `json:"max_cpu_loras,omitempty"`

	BytesPerRank int64 `json:"bytes_per_rank"` // of an adapter, a unit of rank
	// HostGBS and DiskGBS are the GB/s from host memory to the GPU, and from disk to host
	// memory; 0 takes no time.
	HostGBS float64 `json:"host_gb_s"`
	DiskGBS float64 `json:"disk_gb_s"`
	// TokenUSPerRank is what a computed token of a sequence with an adapter takes more, a unit
	// of the adapter's rank, in microseconds.
	TokenUSPerRank float64 `json:"token_us_per_rank"`
	// AdapterMS is what each adapter but the first adds to a step.
	AdapterMS float64 `json:"adapter_ms"`
	// SwitchMS is what a step takes more that changes what is merged. Of a profile that has none
	// and always merges, AdapterMS is.
	SwitchMS float64 `json:"switch_ms,omitempty"`
	// Merged says when an adapter is added to the model's own weights: its tokens cost nothing
	// more then, and a step has its sequences alone. See package batching.
	Merged Merging `json:"merged"`
}

// Merging says when an adapter is merged into the model's weights. Empty is MergeNever.
type Merging string

const (
	MergeNever   Merging = "never"   // a step has any adapters, and all cost
	MergeAlways  Merging = "always"  // adapters take turns, and the model itself does
	MergeDynamic Merging = "dynamic" // one while that pays, then none, as dLoRA does
)

// Mergings are the names of all.
func Mergings() []string {
	return []string{string(MergeNever), string(MergeAlways), string(MergeDynamic)}
}

// UnmarshalJSON reads a name, or false for MergeNever and true for MergeAlways.
func (m *Merging) UnmarshalJSON(data []byte) error {
	var name string
	switch string(data) {
	case "false":
	case "true":
		name = string(MergeAlways)
	default:
		if json.Unmarshal(data, &name) != nil {
			return fmt.Errorf("lora.merged: %s: use false, true or %q", data, MergeDynamic)
		}
	}
	*m = Merging(name)
	return nil
}

// MarshalJSON is what UnmarshalJSON reads.
func (m Merging) MarshalJSON() ([]byte, error) {
	switch m {
	case "", MergeNever:
		return []byte("false"), nil
	case MergeAlways:
		return []byte("true"), nil
	}
	return json.Marshal(string(m))
}

// DefaultRank is that of an adapter of which no rank is known: what vLLM takes at most unless it
// is told otherwise (--max-lora-rank).
const DefaultRank = 16

// MaxRank is more than vLLM takes (512).
const MaxRank = 1 << 12

// maxSlots and maxAdapters are more than a GPU, or host memory, has room for.
const maxSlots, maxAdapters = 1 << 10, 1 << 20

func (l LoRA) validate() error {
	var bad config.Faults
	config.Between(&bad, "max_loras", l.MaxLoRAs, 0, maxSlots)
	config.Between(&bad, "max_cpu_loras", l.MaxCPULoRAs, 0, maxAdapters)
	if l.MaxCPULoRAs > 0 && l.MaxCPULoRAs < max(l.MaxLoRAs, 1) {
		bad.Add("max_cpu_loras", l.MaxCPULoRAs, "use max_loras (%d) or more: those in slots are in host memory too", l.MaxLoRAs)
	}
	if l.BytesPerRank < 0 || l.BytesPerRank > 1<<40 {
		bad.Add("bytes_per_rank", l.BytesPerRank, "use 0 to 2^40 bytes")
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"host_gb_s", l.HostGBS}, {"disk_gb_s", l.DiskGBS}} {
		if !(f.v == 0 || f.v >= 1e-3 && f.v < 1e6) {
			bad.Add(f.name, f.v, "use GB/s from 0.001 to 1e6, or 0 for no time")
		}
	}
	if !(l.TokenUSPerRank >= 0 && l.TokenUSPerRank < 1e6) {
		bad.Add("token_us_per_rank", l.TokenUSPerRank, "use a number of microseconds from 0 to 1e6")
	}
	checkMS(&bad, "adapter_ms", l.AdapterMS)
	checkMS(&bad, "switch_ms", l.SwitchMS)
	if l.Merged != "" && !slices.Contains(Mergings(), string(l.Merged)) {
		bad.Add("merged", string(l.Merged), "use %s", config.Or(Mergings()))
	}
	return bad.Err("engine.LoRA")
}

// WithLoRA is the profile with so many slots, and adapters in host memory, merged so; 0, or
// empty, is its own.
func (p *Profile) WithLoRA(slots, host int, merged Merging) *Profile {
	q := *p
	config.Default(&slots, p.LoRA.MaxLoRAs)
	config.Default(&host, p.LoRA.MaxCPULoRAs)
	config.Default(&merged, p.LoRA.Merged)
	q.LoRA.MaxLoRAs, q.LoRA.MaxCPULoRAs, q.LoRA.Merged = slots, host, merged
	if q.LoRA == p.LoRA {
		return p
	}
	return &q
}

// Load is how long an adapter takes into a slot: from host memory, or from disk into that first.
func (l *LoRA) Load(rank int, disk bool) time.Duration {
	took := l.read(rank, l.HostGBS)
	if disk {
		took += l.read(rank, l.DiskGBS)
	}
	return took
}

func (l *LoRA) read(rank int, gbs float64) time.Duration {
	if gbs == 0 {
		return 0
	}
	return time.Duration(float64(l.BytesPerRank) * float64(rank) / gbs) // bytes over GB/s are ns
}

// Token is what n computed tokens of sequences with an adapter of that rank take more.
func (l *LoRA) Token(n, rank int) time.Duration {
	return time.Duration(l.TokenUSPerRank * float64(n) * float64(rank) * 1e3)
}

// Another is what a step takes more with one more adapter.
func (l *LoRA) Another() time.Duration { return duration(l.AdapterMS) }

// Switch is what a step takes more that changes what is merged.
func (l *LoRA) Switch() time.Duration {
	if l.Merged == MergeAlways && l.SwitchMS == 0 {
		return duration(l.AdapterMS)
	}
	return duration(l.SwitchMS)
}

// Ranks are those of LoRA adapters by name.
type Ranks map[string]int

// Of is an adapter's rank: DefaultRank if it has none here, 0 of the model itself, whose name is
// empty.
func (r Ranks) Of(adapter string) int {
	if rank, known := r[adapter]; known || adapter == "" {
		return rank
	}
	return DefaultRank
}

// ParseAdapter reads NAME, or NAME=RANK.
func ParseAdapter(text string) (name string, rank int, err error) {
	name, number, ranked := strings.Cut(text, "=")
	rank = DefaultRank
	if ranked {
		if rank, err = strconv.Atoi(number); err != nil || rank < 1 || rank > MaxRank {
			err = fmt.Errorf("%q: write NAME=RANK, with a rank from 1 to %d", text, MaxRank)
		}
	}
	if err == nil && name == "" {
		err = fmt.Errorf("%q: write NAME=RANK", text)
	}
	return name, rank, err
}
