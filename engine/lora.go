package engine

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"kvferry/config"
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
	// AdapterMS is what each adapter but the first adds to a step. Where they are merged, it is
	// what a step takes more that changes the merged one.
	AdapterMS float64 `json:"adapter_ms"`
	// Merged adds the adapter to the model's own weights: its tokens cost nothing more, and a
	// step has the sequences of one adapter, or of none. See package batching.
	Merged bool `json:"merged"`
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
	return bad.Err("engine.LoRA")
}

// WithSlots is the profile with so many slots, and adapters in host memory; 0 is its own number.
func (p *Profile) WithSlots(slots, host int) *Profile {
	q := *p
	config.Default(&slots, p.LoRA.MaxLoRAs)
	config.Default(&host, p.LoRA.MaxCPULoRAs)
	if slots == p.LoRA.MaxLoRAs && host == p.LoRA.MaxCPULoRAs {
		return p
	}
	q.LoRA.MaxLoRAs, q.LoRA.MaxCPULoRAs = slots, host
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
	if l.Merged {
		return 0
	}
	return time.Duration(l.TokenUSPerRank * float64(n) * float64(rank) * 1e3)
}

// Change is what a step takes more with one more adapter, or with another one merged.
func (l *LoRA) Change() time.Duration { return duration(l.AdapterMS) }

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
