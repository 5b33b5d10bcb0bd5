package selection

// An Express says which slices go past those that wait on a path, over a connection of their
// own. It is a pure function of what it is told.
//
// Small ones do, and those that their owner calls urgent, where at least Behind bytes are
// under way: with less before them they are as soon there without. They may take
//
//	expressBurst + bytes of others completed / expressShare
//
// and go with the others when they have had that, each counting expressLeast at least: however
// many there are, the others keep 8 of 9 parts of the path.
type Express struct {
	used  int64 // of expressBurst
	spare int64 // bytes of others that completed, not yet a whole expressShare
}

const (
	// Small is the size of the largest batch that is small, in bytes: it takes 260 µs at 1 Gbit/s.
	Small = 32 << 10
	// Behind is how many bytes have to be under way before any go past them.
	Behind = 128 << 10

	expressBurst = 1 << 20
	expressShare = 8
	expressLeast = 512
)

// Fits says whether slices of some bytes may go past others that are under way.
func (x *Express) Fits(bytes, underWay int64) bool {
	return underWay >= Behind && x.used+max(bytes, expressLeast) <= expressBurst
}

// Take has them go past, if they may.
func (x *Express) Take(bytes, underWay int64) bool {
	if !x.Fits(bytes, underWay) {
		return false
	}
	x.used += max(bytes, expressLeast)
	return true
}

// Completed takes bytes of the others that came through.
func (x *Express) Completed(bytes int64) {
	x.spare += bytes
	x.used = max(x.used-x.spare/expressShare, 0)
	x.spare %= expressShare
}
