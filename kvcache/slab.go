package kvcache

import (
	"fmt"
	"math"
	"sync"
)

// A Slab is the memory behind a pool's blocks, as slots of a Geometry. The memory is
// its maker's: mapped outside the Go heap, as a NIC needs it. Pages are then backed when
// they are first touched, so the modelled GPU's 15,000 slots cost the address space
// (15.7 GB) at once but only the memory of the slots that were used; the pool reuses
// recently freed blocks first to keep that number small.
//
// The methods that return bytes may be used from many goroutines at once; who
// may use which bytes is the pool's business.
type Slab struct {
	geometry Geometry
	blocks   int
	mem      []byte

	mu     sync.Mutex
	sealed []seal // by layer, the hidden states last, then by BlockID: a layer of many blocks is written in turn; nil if no digests are kept
}

// SlabBytes is the memory that a slab of so many blocks takes.
func SlabBytes(g Geometry, blocks int) (int, error) {
	if err := g.Validate(); err != nil {
		return 0, err
	}
	if blocks < 1 || uint64(blocks) > math.MaxUint32 {
		return 0, fmt.Errorf("kvcache: slab of %d blocks: want 1 to %d", blocks, uint32(math.MaxUint32))
	}
	if blocks > math.MaxInt/g.SlotBytes() {
		return 0, fmt.Errorf("kvcache: slab of %d blocks of %d bytes does not fit this machine's address space", blocks, g.SlotBytes())
	}
	return blocks * g.SlotBytes(), nil
}

// NewSlab makes slots of memory, as many as it has room for. The memory stays the
// caller's, who gives it back when nothing uses the slab any more.
func NewSlab(g Geometry, mem []byte) (*Slab, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	blocks := len(mem) / g.SlotBytes()
	size, err := SlabBytes(g, blocks)
	if err != nil {
		return nil, err
	}
	return &Slab{geometry: g, blocks: blocks, mem: mem[:size:size]}, nil
}

// Touch has bytes from to to of the slab, as far as it has them, backed by memory now, so
// that the first to use them does not wait for it. A pool hands its blocks out from the
// first on. It overwrites a byte of every page: call it before there is KV.
func (s *Slab) Touch(from, to int) {
	const page = 4 << 10
	for i := max(from, 0); i < min(to, len(s.mem)); i += page {
		s.mem[i] = 0
	}
}

// Geometry is the geometry the slab was made with.
func (s *Slab) Geometry() Geometry { return s.geometry }

// Blocks is the number of slots.
func (s *Slab) Blocks() int { return s.blocks }

// Bytes is the whole slab, for registration.
func (s *Slab) Bytes() []byte { return s.mem }

// Layer is one layer of a block, K then V, LayerBytes long. It panics if there
// is no such block or layer, and so do K, V and Hidden: numbers from outside are
// compared with Blocks and Layers before they come here.
func (s *Slab) Layer(id BlockID, layer int) []byte {
	s.mustHave(id, layer)
	return s.at(s.geometry.LayerOffset(id, layer), s.geometry.LayerBytes())
}

// K is the K plane of one layer of a block: BlockTokens rows.
func (s *Slab) K(id BlockID, layer int) []byte {
	return s.Layer(id, layer)[:s.geometry.planeBytes():s.geometry.planeBytes()]
}

// V is the V plane of one layer of a block: BlockTokens rows.
func (s *Slab) V(id BlockID, layer int) []byte {
	return s.Layer(id, layer)[s.geometry.planeBytes():]
}

// Hidden is the hidden-state plane of a block, HiddenBytes long.
func (s *Slab) Hidden(id BlockID) []byte {
	s.mustHave(id, 0)
	return s.at(s.geometry.HiddenOffset(id), s.geometry.HiddenBytes())
}

// mustHave keeps a wrong layer from silently being the next block's memory,
// which a plain slice expression would allow.
func (s *Slab) mustHave(id BlockID, layer int) {
	if int64(id) >= int64(s.blocks) || layer < 0 || layer >= s.geometry.Layers {
		panic(fmt.Sprintf("kvcache: slab of %d blocks of %d layers has no block %d layer %d", s.blocks, s.geometry.Layers, id, layer))
	}
}

func (s *Slab) at(offset int64, n int) []byte {
	end := offset + int64(n)
	return s.mem[offset:end:end]
}
