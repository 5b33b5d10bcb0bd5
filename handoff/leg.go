package handoff

import "fmt"

// Leg is the part of a request that one node carries.
type Leg uint8

const (
	FullLeg    Leg = iota // the whole request, on one node
	PrefillLeg            // the prompt, and the first token
	DecodeLeg             // the tokens
	// MigrationLeg is the tokens from where the request goes on, on a node that takes it over.
	// For that node it is a decode leg; only who follows the request tells them apart.
	MigrationLeg
)

var legs = [...]string{"full", "prefill", "decode", "migration"}

func (l Leg) String() string {
	if int(l) >= len(legs) {
		return fmt.Sprintf("leg(%d)", uint8(l))
	}
	return legs[l]
}

// Parts is what one move of a transfer carries.
type Parts uint8

const (
	Whole   Parts = iota // the KV of the prompt at once
	Layers               // a layer, as soon as it is computed
	Tensors              // K, V or the hidden states of all layers
)

var parts = [...]string{"whole", "layers", "tensors"}

// TensorCount is how many tensors a prompt has: K, V and the hidden states.
const TensorCount = 3

// Count is how many moves carry the KV of a prompt of a model of so many layers.
func (p Parts) Count(layers int) int {
	switch p {
	case Layers:
		return layers
	case Tensors:
		return TensorCount
	}
	return 1
}

func (p Parts) String() string {
	if int(p) >= len(parts) {
		return fmt.Sprintf("parts(%d)", uint8(p))
	}
	return parts[p]
}
