package transport

import (
	"crypto/rand"
	"encoding/binary"

	"kvferry/transport/immediate"
)

// An Immediate is a number that came with a peer's batch, after its data.
type Immediate struct {
	Value   uint64
	Segment string // name of the segment or window whose key it came with
	Rail    string // the local rail it came over
}

// An Imm is an immediate on its way, see package immediate.
type Imm = immediate.Imm

// randomID returns an unguessable number that is not zero.
func randomID() uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if id := binary.LittleEndian.Uint64(b[:]); id != 0 {
			return id
		}
	}
}

// NewKey returns a key no peer can guess. Rails use it.
func NewKey() Key { return Key(randomID()) }
