package transport

import "kvferry/transport/immediate"

// An Immediate is a number that came with a peer's batch, after its data.
type Immediate struct {
	Value   uint64
	Segment string // name of the segment or window whose key it came with
	Rail    string // the local rail it came over
}

// An Imm is an immediate on its way, see package immediate.
type Imm = immediate.Imm

// NewKey returns a key no peer can guess. Rails use it.
func NewKey() Key { return Key(immediate.Random()) }
