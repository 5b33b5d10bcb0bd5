package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Quantization is how the weights of linear layers are kept. Embeddings, the output head,
// norms and routers are not quantised.
type Quantization struct {
	Name    string // "gptq", for people
	Bits    int    // of a weight
	Group   int    // of so many weights, each has a scale of 16 bits and a zero of Bits; 0: next to none
	Compute string // what is multiplied: "fp16" (which bf16 is as fast as), "fp8" or "int8"
}

// quantizations are those that a user may ask for by name.
var quantizations = map[string]Quantization{
	"none": {Name: "none", Bits: 16, Compute: "fp16"},
	"fp8":  {Name: "fp8", Bits: 8, Compute: "fp8"},
	"int8": {Name: "int8", Bits: 8, Compute: "int8"},
	"int4": {Name: "int4", Bits: 4, Group: 128, Compute: "fp16"},
}

// QuantizationNames are what ParseQuantization knows.
func QuantizationNames() []string { return slices.Sorted(maps.Keys(quantizations)) }

// ParseQuantization is that of a name: none is 16 bits; fp8 and int8 are of weights and
// activations; int4 is of weights, in groups of 128, as GPTQ and AWQ have it.
func ParseQuantization(name string) (Quantization, error) {
	q, ok := quantizations[name]
	if lower := strings.ToLower(name); lower == "gptq" || lower == "awq" {
		return q, fmt.Errorf("use int4, which is GPTQ's and AWQ's")
	}
	if !ok {
		return q, fmt.Errorf("use %s", strings.Join(QuantizationNames(), ", "))
	}
	return q, nil
}

// WeightBytes are those of one weight, with its part of the group's scale and zero.
func (q Quantization) WeightBytes() float64 {
	bits := float64(q.Bits)
	if q.Group > 0 {
		bits += (16 + float64(q.Bits)) / float64(q.Group)
	}
	return bits / 8
}

func (q Quantization) String() string {
	text := fmt.Sprintf("%s, %d bits", q.Name, q.Bits)
	if q.Group > 0 {
		text += fmt.Sprintf(" in groups of %d", q.Group)
	}
	return text
}

// quantizationJSON is the quantization_config of a config.json.
type quantizationJSON struct {
	Method string `json:"quant_method"`
	Bits   int    `json:"bits"`
	Group  int    `json:"group_size"`
	Groups map[string]struct {
		Weights *tensorJSON `json:"weights"`
		Input   *tensorJSON `json:"input_activations"`
	} `json:"config_groups"`
}

// tensorJSON is how compressed-tensors says what one kind of tensor is kept as.
type tensorJSON struct {
	Bits  int    `json:"num_bits"`
	Type  string `json:"type"`
	Group int    `json:"group_size"`
}

// quantization reads a quantization_config; nil is none.
func (j *quantizationJSON) quantization() (Quantization, error) {
	if j == nil {
		return quantizations["none"], nil
	}
	q := Quantization{Name: j.Method, Bits: j.Bits, Group: max(j.Group, 0), Compute: "fp16"}
	switch j.Method {
	case "gptq", "awq":
	case "fp8":
		q.Bits, q.Group, q.Compute = 8, 0, "fp8"
	case "compressed-tensors":
		var err error
		if q, err = j.compressed(); err != nil {
			return q, err
		}
	default:
		return q, fmt.Errorf("quantization_config.quant_method is %q: awq, compressed-tensors, fp8 and gptq are known: name the nearest of %s yourself",
			j.Method, strings.Join(QuantizationNames(), ", "))
	}
	if !slices.Contains([]int{2, 3, 4, 8}, q.Bits) {
		return q, fmt.Errorf("quantization_config.bits is %d: 2, 3, 4 and 8 are known", q.Bits)
	}
	if q.Group > most {
		return q, fmt.Errorf("quantization_config.group_size is %d: it must be at most %d, or -1 for none", q.Group, most)
	}
	return q, nil
}

// compressed reads the groups of compressed-tensors, of which one is known.
func (j *quantizationJSON) compressed() (Quantization, error) {
	q := Quantization{Name: j.Method, Compute: "fp16"}
	if len(j.Groups) != 1 {
		return q, fmt.Errorf("quantization_config.config_groups has %d groups: one, for all linear layers, is known", len(j.Groups))
	}
	for name, g := range j.Groups {
		if g.Weights == nil {
			return q, fmt.Errorf("quantization_config.config_groups.%s has no weights", name)
		}
		q.Bits, q.Group = g.Weights.Bits, max(g.Weights.Group, 0)
		if g.Input == nil {
			continue
		}
		kind := map[string]string{"float": "fp8", "int": "int8"}[g.Input.Type]
		if kind == "" || g.Input.Bits != 8 {
			return q, fmt.Errorf("quantization_config.config_groups.%s.input_activations are %s of %d bits: float and int of 8 are known", name, g.Input.Type, g.Input.Bits)
		}
		q.Compute = kind
	}
	return q, nil
}
