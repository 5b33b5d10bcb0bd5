// Package datasheet estimates what a GPU costs with a model that nobody has measured there: an
// engine.Profile from the model's config.json and the GPU's datasheet.
//
//	a prompt's token   2 operations a weight / (peak x MFU)
//	a decode step      bytes of weights / (memory's rate x MBU) + kernels x kernel_us
//
// There is one MFU and one MBU for all GPUs: medians over published measurements, of which each
// is turned into one by these formulas. data.json has them, and the GPUs.
package datasheet

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"kvferry/internal/config"
)

//go:embed data.json
var text []byte

// A GPU is a datasheet's figures, without sparsity.
type GPU struct {
	Name         string             `json:"name"`
	MemoryGiB    float64            `json:"memory_gib"` // that CUDA says it has, which is less than what it is sold by
	BandwidthGBS float64            `json:"bandwidth_gb_s"`
	TFLOPS       map[string]float64 `json:"tflops"` // fp16 (bf16 is the same), fp8, int8
	Interconnect string             `json:"interconnect"`
	LinkGBS      float64            `json:"link_gb_s"`     // one direction
	AllReduceUS  float64            `json:"all_reduce_us"` // of next to nothing; this and LinkGBS may be 0 if one GPU computes alone
	SmallGBS     float64            `json:"small_gb_s"`    // that a GPU sends in a small all-reduce; 0: as in a large one
	Source       string             `json:"source"`
}

// data is data.json.
type data struct {
	GPUs            []GPU     `json:"gpus"`
	MFU             float64   `json:"mfu"`
	MBU             float64   `json:"mbu"`
	KernelUS        float64   `json:"kernel_us"` // that a kernel takes however little it does
	KernelSource    string    `json:"kernel_source"`
	BusShare        float64   `json:"bus_share"` // of LinkGBS, in a large all-reduce
	BusSource       string    `json:"bus_source"`
	AllReduceSource string    `json:"all_reduce_source"`
	SmallBytes      int       `json:"small_bytes"` // below which an all-reduce is small
	SmallSource     string    `json:"small_source"`
	Prefills        []prefill `json:"prefills"`
	Decodes         []decode  `json:"decodes"`
	// AllReduces are of 8 H100, by their bytes.
	AllReduces []struct {
		Bytes float64 `json:"bytes"`
		US    float64 `json:"us"`
	} `json:"all_reduces"`
	ExpertMBU    float64     `json:"expert_mbu"` // of kernels that multiply with the experts that tokens are routed to
	Experts      []decode    `json:"experts"`
	Sustained    []sustained `json:"sustained"`
	HeatMS       float64     `json:"heat_ms"`
	HeatSource   string      `json:"heat_source"`
	EagerLayerMS float64     `json:"eager_layer_ms"` // launching a layer's kernels one by one
	EagerSource  string      `json:"eager_source"`
	Evidence     []evidence  `json:"evidence"`
}

// An evidence is how far profiles of a GPU are from published runs on it, which nothing was fitted
// to: shares, the worst with its sign. TestDatasheets of package bench computes them.
type evidence struct {
	GPU    string  `json:"gpu"`
	What   string  `json:"what"`
	Median float64 `json:"median"`
	Worst  float64 `json:"worst"`
}

// A sustained is how many samples of the same benchmark a card computed in ten minutes, beside
// another whose power holds nothing back.
type sustained struct {
	GPU           string  `json:"gpu"`
	Samples       float64 `json:"samples_s"`
	Beside        string  `json:"beside"`
	BesideSamples float64 `json:"beside_samples_s"`
	Compute       string  `json:"compute"` // the peaks are those of
	Source        string  `json:"source"`
}

// A prefill is a published time to the first token of one prompt.
type prefill struct {
	What      string  `json:"what"`
	Tokens    float64 `json:"tokens"`
	Params    float64 `json:"params"` // without embeddings and head
	PairFlops float64 `json:"pair_flops"`
	Kernels   float64 `json:"kernels"`
	MS        float64 `json:"ms"`
	TFLOPS    float64 `json:"tflops"`
	Source    string  `json:"source"`
}

// A decode is a published time a token of one sequence, or of kernels that read.
type decode struct {
	What    string  `json:"what"`
	GB      float64 `json:"gb"` // read
	Kernels float64 `json:"kernels"`
	MS      float64 `json:"ms"`
	GBS     float64 `json:"gb_s"`
	Source  string  `json:"source"`
}

var known = func() (d data) {
	if err := config.Unmarshal(text, &d, true); err != nil {
		panic("datasheet: data.json: " + err.Error())
	}
	return d
}()

// Names are the GPUs of the table.
func Names() (all []string) {
	for _, g := range known.GPUs {
		all = append(all, g.Name)
	}
	return all
}

// ReadGPU is the GPU of that name in the table, or the one that a JSON file of that name
// describes with the same fields.
func ReadGPU(name string) (GPU, error) {
	for _, g := range known.GPUs {
		if strings.EqualFold(g.Name, name) {
			return g, nil
		}
	}
	var g GPU
	file, err := config.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		use := Names()
		if kinds := slices.DeleteFunc(slices.Clone(use), func(n string) bool { return !strings.HasPrefix(strings.ToUpper(n), strings.ToUpper(name)+"-") }); len(kinds) > 0 {
			use = kinds
		}
		return g, fmt.Errorf("%w, nor a GPU of the table: use %s or a JSON file", err, strings.Join(use, ", "))
	} else if err != nil {
		return g, err
	}
	if err := config.Unmarshal(file, &g, true); err != nil {
		return g, fmt.Errorf("%q: %w", name, err)
	}
	for _, f := range []struct {
		field string
		v     float64
	}{
		{"memory_gib", g.MemoryGiB}, {"bandwidth_gb_s", g.BandwidthGBS}, {"tflops.fp16", g.TFLOPS["fp16"]},
	} {
		if !(f.v > 0 && f.v < 1e7) {
			return g, fmt.Errorf("%q: %s is %v: use more than 0, as the datasheet has it", name, f.field, f.v)
		}
	}
	if g.Name == "" {
		return g, fmt.Errorf("%q: name is missing", name)
	}
	return g, nil
}

// slowdown is how much longer arithmetic takes when the card has computed for long: a card whose
// power is small for its arithmetic lowers its clock then. MFU is of cards whose is not.
func (g GPU) slowdown() (share float64, source string) {
	for _, s := range known.Sustained {
		if s.GPU != g.Name || g.TFLOPS[s.Compute] == 0 {
			continue
		}
		beside, err := ReadGPU(s.Beside)
		if err != nil {
			panic("datasheet: data.json: " + err.Error())
		}
		return (s.BesideSamples/beside.TFLOPS[s.Compute])/(s.Samples/g.TFLOPS[s.Compute]) - 1, fmt.Sprintf("%.0f samples/s where %s has %.0f, each by its peak (%s)", s.Samples, s.Beside, s.BesideSamples, s.Source)
	}
	return 0, ""
}

// peak is the rate for what is multiplied, in TFLOPS, and what it is multiplied as: in 16 bits
// where the GPU has no rate for fewer.
func (g GPU) peak(compute string) (tflops float64, as string) {
	if v := g.TFLOPS[compute]; v > 0 {
		return v, compute
	}
	return g.TFLOPS["fp16"], "fp16"
}
