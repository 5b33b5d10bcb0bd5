package kvcache

import (
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"
)

// A seal is the digest of the first rows of a layer of one generation of a block, from when the bytes are written until
// the block is recycled, also while it is in the prefix cache. Each copy on another node has the same. The digest of a
// full layer is one hash of its 32 KiB. That of a layer with fewer rows is a sum over hashes of its rows, so that a row
// which a decode step adds does not have the earlier ones hashed again: a digest never covers bytes that have changed
// since they were first sealed.
//
// XXH3 takes 0.013 CPU-s/GB of what is in the cache, as after a write, where CRC-32C takes 0.041 and hash/maphash
// 0.085; from memory both read as fast as that gives them (BenchmarkDigest). It detects faults, not forgery.
type seal struct {
	sum  uint64
	gen  uint32
	rows uint32 // 0 if there is none
}

// ErrChanged is wrapped by the error for a block whose bytes matched their digest on this node before.
var ErrChanged = errors.New("changed in this node's memory")

// A DigestError names a layer of a block whose bytes are not those of its digest.
type DigestError struct {
	Index int // in the sequence's block table
	Run   int // if above 1, it is this block or one of those after it: they have one digest
	Ref   Ref
	Layer int // Geometry.Layers for the hidden states; -1 if the digest is of all layers
}

func (e *DigestError) Error() string {
	s := fmt.Sprintf("kvcache: block %d (%v of the pool)", e.Index, e.Ref)
	if e.Run > 1 {
		s = fmt.Sprintf("kvcache: a block of %d to %d (%v ... of the pool)", e.Index, e.Index+e.Run-1, e.Ref)
	}
	if e.Layer >= 0 {
		s += fmt.Sprintf(" layer %d", e.Layer)
	}
	return s + ": its bytes are not those of its digest"
}

// KeepDigests has Seal record digests from now on. It is called before the slab is used.
func (s *Slab) KeepDigests() { s.sealed = make([]seal, (s.geometry.Layers+1)*s.blocks) }

// Seal records the digest of the first rows rows of one layer of a block, or of its hidden
// states if layer is Geometry.Layers. Whoever writes a layer calls it right after, while the
// bytes are in the CPU's cache. Rows that were sealed before are not hashed into the digest
// again: written once more, they must be the same bytes. Seal does nothing unless KeepDigests
// was called.
func (s *Slab) Seal(ref Ref, layer, rows int) {
	sum, n := s.Sealed(ref, layer)
	switch {
	case s.sealed == nil || rows <= n:
	case rows < s.geometry.BlockTokens:
		s.Land(ref, layer, rows, sum+s.sumRows(ref.ID, layer, n, rows))
	case s.sumRows(ref.ID, layer, 0, n) != sum:
		s.Land(ref, layer, rows, ^s.Digest(ref.ID, layer, rows)) // what was sealed has changed: no bytes are right any more
	default:
		s.Land(ref, layer, rows, s.Digest(ref.ID, layer, rows))
	}
}

// Land records the digest sum of the first rows rows of a layer, which the caller computed with
// Digest and compared with what the node that sent the bytes has.
func (s *Slab) Land(ref Ref, layer, rows int, sum uint64) {
	if s.sealed == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sealed[layer*s.blocks+int(ref.ID)] = seal{sum, ref.Gen, uint32(rows)}
}

// Sealed returns the recorded digest of a layer, and how many rows it covers: 0 if none are.
func (s *Slab) Sealed(ref Ref, layer int) (sum uint64, rows int) {
	if s.sealed == nil {
		return 0, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sealed[layer*s.blocks+int(ref.ID)]; e.gen == ref.Gen {
		return e.sum, int(e.rows)
	}
	return 0, 0
}

// Verify compares the sealed bytes of layers [from, to) of a block with their digests. known is
// whether all of these layers have one. The error is a *DigestError for the first that differs,
// with index in it.
func (s *Slab) Verify(ref Ref, index, from, to int) (known bool, err error) {
	known = true
	for l := from; l < to; l++ {
		sum, rows := s.Sealed(ref, l)
		if rows > 0 && s.Digest(ref.ID, l, rows) != sum {
			return known, &DigestError{Index: index, Ref: ref, Layer: l}
		}
		known = known && rows > 0
	}
	return known, nil
}

// Digest computes the digest of the first rows rows of a layer from the bytes as they are now.
func (s *Slab) Digest(id BlockID, layer, rows int) uint64 {
	if rows < s.geometry.BlockTokens {
		return s.sumRows(id, layer, 0, rows)
	}
	src := s.layerOrHidden(id, layer)
	raceRead(src)
	return xxh3.Hash(src)
}

// sumRows is the sum over rows [from, to) of a layer that is not full.
func (s *Slab) sumRows(id BlockID, layer, from, to int) (sum uint64) {
	src, n := s.layerOrHidden(id, layer), s.geometry.HiddenTokenBytes()
	planes := 1
	if layer < s.geometry.Layers {
		n, planes = s.geometry.rowBytes(), 2
	}
	for p := range planes {
		for i := p*s.geometry.BlockTokens + from; i < p*s.geometry.BlockTokens+to; i++ {
			row := src[i*n : (i+1)*n]
			raceRead(row)
			sum += At(xxh3.Hash(row), i)
		}
	}
	return sum
}

// At makes of a digest a summand that depends on its place among others: sums of digests that
// have changed places differ.
func At(digest uint64, place int) uint64 { return mix(digest + uint64(place+1)*step) }

func (s *Slab) layerOrHidden(id BlockID, layer int) []byte {
	if layer == s.geometry.Layers {
		return s.Hidden(id)
	}
	return s.Layer(id, layer)
}
