package tcp

import "time"

// An info is what the kernel says of a connection, of its TCP_INFO (linux/tcp.h) most of it.
type info struct {
	RTT, MinRTT time.Duration // smoothed, and the least; 0 if not known
	Jitter      time.Duration // how much longer one may take: four mean deviations
	Window      int64         // bytes that congestion control lets be under way
	Unacked     int64         // bytes that are
	SlowStart   bool          // Window doubles with each round trip
	Rate        float64       // bytes/s, latest that were delivered
	Sent        uint64        // segments with data
	Resent      uint64        // of them, sent again and not for nothing
	Received    uint64        // bytes
	SendBuffer  int           // bytes, as the kernel counts them: twice those of data
	RecvBuffer  int
	SendMost    int // to which the kernel grows them by itself
	RecvMost    int
	Congestion  string
	Segment     int64 // bytes at most in one that is received
}

// A decision is what to change of a connection. Zero values leave things as they are.
type decision struct {
	SendBuffer int // bytes, as info has them
	RecvBuffer int
	RecvGrow   bool // as far as the kernel would, now
	Congestion string
	Why        string // of Congestion
}

// A tuning decides what a connection needs to fill its path, by looking at it now and then. It
// is a pure function of what it sees.
//
// Buffers hold what is under way, and as much again: the kernel sends again from the send buffer.
// It grows both by itself, but only up to tcp_wmem and tcp_rmem, 4 and 6 MiB by default, which is
// 30 MB/s at a round trip of 100 ms. A size that is set ends that, so nothing is set until the
// kernel has come so far. Its receive buffer grows by what came in the last round trip, behind the
// sender's window, so on a long path it is as large at once. Buffers grow and do not shrink.
//
// Congestion control is what the losses of its host say.
type tuning struct {
	congestionFixed, sendFixed bool // the user has chosen

	last   info
	at     time.Duration // of last
	rate   float64       // bytes/s received, the best of late
	losses *losses       // of all connections with its host
	widest int64         // window of cubic
	stuck  int           // looks in a row that found a window too small
}

const (
	// longPath is what a round trip takes from where buffers are left to the kernel to begin
	// with: below it a fixed send buffer is the fastest, see the package.
	longPath   = 2 * time.Millisecond
	shortPath  = 2 << 20   // the buffer of a shorter one
	mostBuffer = 128 << 20 // 60 MB under way: 5 Gbit/s at 100 ms
)

// step looks at a connection.
func (t *tuning) step(now time.Duration, i info) (d decision) {
	switch {
	case t.sendFixed, i.MinRTT == 0:
	case i.MinRTT < longPath && i.SendBuffer < shortPath:
		d.SendBuffer = shortPath
	default:
		d.SendBuffer = grown(i.SendBuffer, i.SendMost, max(float64(i.Window), i.Rate*i.MinRTT.Seconds()), i.MinRTT)
	}
	if took := now - t.at; t.at > 0 && took > 0 {
		t.rate = max(float64(i.Received-t.last.Received)/took.Seconds(), t.rate*0.9)
	}
	d.RecvGrow = i.MinRTT >= longPath && i.RecvBuffer < i.RecvMost/2
	d.RecvBuffer = grown(i.RecvBuffer, i.RecvMost, t.rate*i.MinRTT.Seconds(), i.MinRTT)
	if !t.congestionFixed && (i.Congestion == cubic || i.Congestion == bbr) {
		d.Congestion, d.Why = t.congestion(now, i)
	}
	t.last, t.at = i, now
	return d
}

// grown is a buffer's new size for so many bytes under way, 0 if it is large enough or still the
// kernel's to grow. The kernel counts its own use of memory as well, about as much again.
func grown(size, most int, bytes float64, rtt time.Duration) int {
	if rtt < longPath || size < most-most/4 || 4*bytes <= float64(size) || size >= mostBuffer {
		return 0
	}
	return min(int(6*bytes), mostBuffer) // half as much again, so as not to follow each step
}
