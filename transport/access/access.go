// Package access is what a key of registered memory opens to the peers that have it: which ranges, in
// which direction. Targets check every slice by it.
package access

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

var (
	// ErrBounds: the range is not inside what the key opens.
	ErrBounds = errors.New("out of bounds")
	// ErrAccess: the key does not open the memory in that direction.
	ErrAccess = errors.New("the key does not open that direction")
	// ErrInvalid: the request can never be carried out as it stands.
	ErrInvalid = errors.New("invalid request")
)

// An Op is a direction of transfer, seen from the initiator.
type Op uint8

const (
	Write Op = iota // local memory to the target
	Read            // target to local memory
)

func (o Op) String() string {
	switch o {
	case Write:
		return "write"
	case Read:
		return "read"
	}
	return "invalid op"
}

// A Range is a part of registered memory.
type Range struct {
	Offset, Length int64 // bytes; Offset from the start of the memory
}

// An Access says what a key opens to the peers that have it. The zero value opens
// nothing: memory under such a key is the local side of transfers and no more. An
// Access does not change, and may be used concurrently.
type Access struct {
	may    [2]bool               // by Op
	ranges []Range               // in order; neither overlapping nor adjacent
	wrote  func(offset, n int64) // nil if nobody watches
}

// Whole opens n bytes from the start of the memory, in both directions.
func Whole(n int64) Access {
	return Access{may: [2]bool{true, true}, ranges: []Range{{0, n}}}
}

// New opens ranges in one direction, seen from the peer: Read lets it read.
// The ranges may come in any order, overlap and touch; a transfer may go across the
// border of two that touch. A range that is empty, negative or ends beyond what an
// int64 holds is ErrInvalid, and so are no ranges at all.
func New(op Op, ranges []Range) (Access, error) {
	if op != Write && op != Read {
		return Access{}, fmt.Errorf("%w: op %d", ErrInvalid, op)
	}
	if len(ranges) == 0 {
		return Access{}, fmt.Errorf("%w: no ranges", ErrInvalid)
	}
	for i, r := range ranges {
		if r.Offset < 0 || r.Length <= 0 || r.Length > math.MaxInt64-r.Offset {
			return Access{}, fmt.Errorf("%w: range %d: %d bytes at offset %d", ErrInvalid, i, r.Length, r.Offset)
		}
	}
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.Offset, b.Offset) })
	merged := sorted[:1]
	for _, r := range sorted[1:] {
		last := &merged[len(merged)-1]
		if end := last.Offset + last.Length; r.Offset <= end {
			last.Length = max(end, r.Offset+r.Length) - last.Offset
			continue
		}
		merged = append(merged, r)
	}
	a := Access{ranges: slices.Clip(merged)}
	a.may[op] = true
	return a, nil
}

// Within is nil if memory of n bytes has all that is opened, and ErrInvalid if not.
func (a *Access) Within(n int64) error {
	if len(a.ranges) == 0 {
		return nil
	}
	if r := a.ranges[len(a.ranges)-1]; r.Offset+r.Length > n {
		return fmt.Errorf("%w: %d bytes at offset %d of memory of %d bytes", ErrInvalid, r.Length, r.Offset, n)
	}
	return nil
}

// None reports whether nothing is opened.
func (a *Access) None() bool { return len(a.ranges) == 0 }

// Check says whether a peer may do op with n bytes at an offset, whatever the three
// are: nil, or ErrAccess for the direction, or ErrBounds for the range. No bytes
// may come with any key that opens something: that is an immediate by itself. near is the index of
// the range that the call before found, 0 at first, and the index that it returns
// is this one's: slices of one transfer come in order most of the time, and are then
// found without a search. It allocates nothing.
func (a *Access) Check(op Op, offset, n int64, near int) (int, error) {
	if op != Write && op != Read || !a.may[op] && (n != 0 || a.None()) {
		return near, ErrAccess
	}
	if n == 0 {
		return near, nil
	}
	if offset < 0 || n < 0 {
		return near, ErrBounds
	}
	if near < len(a.ranges) && a.ranges[near].holds(offset, n) {
		return near, nil
	}
	if near++; near < len(a.ranges) && a.ranges[near].holds(offset, n) {
		return near, nil
	}
	// The last range that begins at the offset or before it.
	from, to := 0, len(a.ranges)
	for from < to {
		if mid := int(uint(from+to) >> 1); a.ranges[mid].Offset <= offset {
			from = mid + 1
		} else {
			to = mid
		}
	}
	if at := from - 1; at >= 0 && a.ranges[at].holds(offset, n) {
		return at, nil
	}
	return 0, ErrBounds
}

// holds reports whether n bytes from an offset, neither negative, lie in the range.
func (r *Range) holds(offset, n int64) bool {
	return offset >= r.Offset && n <= r.Length && offset-r.Offset <= r.Length-n
}

// Watched returns the same access with a function that is called when a peer has written n bytes at an offset of the
// memory, or perhaps a part of them before its connection broke. A rail that watches writes calls it on the goroutine
// that copied the bytes, while they are in the CPU's cache, and before the slice completes. Calls for several
// connections may run at once. There are none once the key is invalid.
func (a Access) Watched(wrote func(offset, n int64)) Access {
	a.wrote = wrote
	return a
}

// Wrote returns the function that Watched was given, or nil.
func (a *Access) Wrote() func(offset, n int64) { return a.wrote }

// Both is the same ranges in both directions.
func (a Access) Both() Access {
	a.may = [2]bool{true, true}
	return a
}

// Bare opens no bytes, and lets the same immediates come.
func (a Access) Bare() Access {
	if !a.None() {
		a.ranges = []Range{{}}
	}
	return a
}

// May reports whether the direction is open.
func (a *Access) May(op Op) bool { return a.may[op] }

// Ranges are those that are open, in order: of ranges that overlap or touch their union. They are not
// to be changed.
func (a *Access) Ranges() []Range { return a.ranges }
