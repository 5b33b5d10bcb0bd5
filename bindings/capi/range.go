package capi

import (
	"fmt"
	"math/bits"

	"kvferry/transport"
)

// A Range is Count pieces of Length bytes each, at equal distances in both memories. It is laid
// out as C's kvf_range, whose arrays are read in place.
//
//	local    |piece|........|piece|........|piece|     LocalStride from one's first byte to the next one's
//	remote   |piece|..|piece|..|piece|                 RemoteStride likewise
type Range struct {
	Local        uintptr // address of the first piece, in registered memory
	Remote       uint64  // its offset in the target's segment
	Length       uint64  // bytes of each piece
	Count        uint64  // 0 is 1
	LocalStride  int64
	RemoteStride int64
	Segment      uint32 // of the target, in the order of its advertisement
	Reserved     uint32 // 0
}

const (
	mostBytes  = 1 << 47 // that an address space holds
	mostPieces = 1 << 20 // of a batch
)

// pieces are how many requests a range is: one, if its pieces touch in both memories.
func (r *Range) pieces() (count, length uint64) {
	count = max(r.Count, 1)
	if r.LocalStride == int64(r.Length) && r.RemoteStride == int64(r.Length) && count <= mostBytes/r.Length {
		return 1, count * r.Length
	}
	return count, r.Length
}

// span is where the pieces lie, from a first one at the given place: the lowest byte and the one behind
// the highest.
func span(first, count, length uint64, stride int64) (low, high uint64, ok bool) {
	low = first
	back := stride < 0
	distance := uint64(stride)
	if back {
		distance = -distance
	}
	over, width := bits.Mul64(distance, count-1)
	if over != 0 || width > mostBytes {
		return 0, 0, false
	}
	if back {
		low -= width
	}
	high = low + width + length
	return low, high, high > low && high <= 1<<63 // low is behind high if it ran below zero
}

// check says what is wrong with a range by itself.
func (r *Range) check(segments int) error {
	switch {
	case r.Reserved != 0:
		return fmt.Errorf("%w: reserved is %d, not 0", ErrUnsupported, r.Reserved)
	case r.Length == 0 || r.Length > mostBytes:
		return invalid("pieces of %d bytes", r.Length)
	case r.Count > mostPieces:
		return invalid("%d pieces, at most %d", r.Count, mostPieces)
	case int(r.Segment) >= segments:
		return invalid("segment %d of a target that has %d", r.Segment, segments)
	}
	return nil
}

// requests appends a batch's requests to reqs. Nothing is read at an address that is not in one of the regions.
func requests(reqs []transport.Request, op transport.Op, ranges []Range, targets []*transport.Target, regions []region) ([]transport.Request, error) {
	var at int // in regions, where the last range was
	for i := range ranges {
		r := &ranges[i]
		if err := r.check(len(targets)); err != nil {
			return reqs, fmt.Errorf("range %d: %w", i, err)
		}
		count, length := r.pieces()
		if uint64(len(reqs))+count > mostPieces {
			return reqs, invalid("range %d: more than %d pieces in a batch", i, mostPieces)
		}
		low, high, ok := span(uint64(r.Local), count, length, r.LocalStride)
		if !ok {
			return reqs, invalid("range %d: %d pieces of %d bytes, %d apart, from address %#x", i, count, length, r.LocalStride, r.Local)
		}
		if _, _, ok := span(r.Remote, count, length, r.RemoteStride); !ok {
			return reqs, invalid("range %d: %d pieces of %d bytes, %d apart, from offset %d", i, count, length, r.RemoteStride, r.Remote)
		}
		if at = find(regions, at, low, high); at < 0 {
			return reqs, fmt.Errorf("range %d: %w: %#x to %#x", i, transport.ErrNotRegistered, low, high)
		}
		mem := regions[at].mem
		local, remote := int64(uint64(r.Local)-uint64(regions[at].base)), int64(r.Remote)
		for range count {
			reqs = append(reqs, transport.Request{Op: op, Local: mem[local : local+int64(length) : local+int64(length)], Offset: remote, Target: targets[r.Segment]})
			local += r.LocalStride
			remote += r.RemoteStride
		}
	}
	return reqs, nil
}

// find is the region that holds all from low to high, near first, or -1.
func find(regions []region, near int, low, high uint64) int {
	holds := func(r *region) bool {
		return low >= uint64(r.base) && high <= uint64(r.base)+uint64(len(r.mem))
	}
	if near < len(regions) && holds(&regions[near]) {
		return near
	}
	for i := range regions {
		if holds(&regions[i]) {
			return i
		}
	}
	return -1
}
