package connection

import "kvferry/transport"

const (
	// QueueSlices and QueueBytes bound what an endpoint has taken and not completed. They
	// cover several batches of any size, and bound what a lost connection has to send
	// again: 64 MiB take 5 ms at 100 Gbit/s, and 6.7 s at 80 Mbit/s.
	QueueSlices = 4096
	QueueBytes  = 64 << 20
)

// A Room is the account of one endpoint: what it has taken and not completed. The zero
// value is empty. It has no lock: that of the endpoint's queue guards it.
type Room struct {
	// Slices is the bound, where it is another than QueueSlices.
	Slices int

	posted int
	bytes  int64
}

// Take counts the slices that there is room for, from the first on, and returns how many
// those are: QueueSlices and QueueBytes at most with those before them, or one slice of
// any size where there are none.
func (r *Room) Take(slices []*transport.Slice) (n int) {
	most := r.Slices
	if most == 0 {
		most = QueueSlices
	}
	for _, s := range slices {
		size := int64(len(s.Local))
		if r.posted >= most || r.posted > 0 && r.bytes+size > QueueBytes {
			break
		}
		r.posted++
		r.bytes += size
		n++
	}
	return n
}

// UnderWay is what was taken and has not completed, in bytes and one more for each slice: 0 is nothing.
func (r *Room) UnderWay() int64 { return r.bytes + int64(r.posted) }

// Free takes n slices, of so many bytes together, off the account. It is called before
// they are completed: whoever hears of a completion finds room.
func (r *Room) Free(n int, bytes int64) {
	r.posted -= n
	r.bytes -= bytes
}
