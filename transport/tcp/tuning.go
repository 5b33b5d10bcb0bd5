package tcp

import (
	"fmt"
	"time"
)

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
// Congestion control is cubic, which fills a clean link: it takes each lost packet for a queue
// that is full. On a path that loses packets although no queue stands in it, as its round trips
// are as short as ever, it is wrong, and bbr, which goes by rate and round trip, is right. bbr
// costs some percent on clean links and 40 % on loopback, so a path goes to it by what it
// does, and back:
//
//	       lossRuns looks in a row: lossShare lost, and round trips short;
//	       or stuckLooks in a row: it grows slowly, and nothing says why
//	cubic ───────────────────────────────────────────────────────────────► bbr
//	  ▲                                                                     │
//	  └──────────── nothing lost for calm, twice as long each time ◄────────┘
//
// cubic ends slow start when round trips or bursts of acknowledgements look like a queue (HyStart). On
// a long path that is an error now and then, from which cubic takes a minute to recover: its window is
// in use, nothing was ever lost, and round trips are short. That brings a connection to bbr once.
type tuning struct {
	congestionFixed, sendFixed bool // the user has chosen

	last     info
	at       time.Duration // of last
	rate     float64       // bytes/s received, the best of late
	sent     uint64        // at the last look at losses
	resent   uint64
	bad      int           // looks in a row that found losses without a queue
	stuck    int           // looks in a row that found a window too small; -1: has been
	calm     time.Duration // how long nothing must be lost on bbr for cubic
	lossless time.Duration // since when nothing was lost
}

const (
	// So many segments are looked at together, or fewer that so many of are lost: a path with 1 %
	// of loss may carry no more than 300 a second on cubic, and is given little then.
	lossLook  = 8192
	lossSeen  = 16
	lossFew   = 4
	lossMuch  = 0.005
	lossShare = 0.0003
	lossRuns  = 2
	// stuckLooks are half a second: five round trips of 100 ms.
	stuckLooks = 10
	leastCalm  = 30 * time.Second
	mostCalm   = 32 * time.Minute
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
	if !t.congestionFixed {
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

func (t *tuning) congestion(now time.Duration, i info) (to, why string) {
	if t.calm == 0 {
		t.calm, t.sent, t.resent, t.lossless = leastCalm, i.Sent, i.Resent, now
	}
	sent, resent := i.Sent-t.sent, i.Resent-t.resent
	share := float64(resent) / float64(max(sent, 1))
	switch i.Congestion {
	case cubic:
		if t.tooSmall(i) {
			t.sent, t.resent, t.bad, t.lossless = i.Sent, i.Resent, 0, now
			return bbr, fmt.Sprintf("slow start ended at %d bytes although nothing was lost and no queue stands: a round trip takes %v, the least %v", i.Window, i.RTT.Round(10*time.Microsecond), i.MinRTT.Round(10*time.Microsecond))
		}
		if sent < lossLook && resent < lossSeen && (resent < lossFew || share < lossMuch) {
			return "", ""
		}
		t.sent, t.resent = i.Sent, i.Resent
		queue := i.RTT - i.MinRTT - i.Jitter
		if share < lossShare || queue > max(i.MinRTT/2, longPath) {
			t.bad = 0
			return "", ""
		}
		if t.bad++; t.bad < lossRuns {
			return "", ""
		}
		t.bad, t.lossless = 0, now
		return bbr, fmt.Sprintf("%.2g %% of its packets are lost and no queue stands in it: a round trip takes %v, the least %v", 100*share, i.RTT.Round(10*time.Microsecond), i.MinRTT.Round(10*time.Microsecond))
	case bbr:
		if resent > 0 || sent == 0 { // a path that is not used shows nothing
			t.lossless = now
		}
		t.sent, t.resent = i.Sent, i.Resent
		if calm := t.calm; now-t.lossless >= calm {
			t.calm = min(2*calm, mostCalm)
			return cubic, fmt.Sprintf("nothing was lost for %v", calm)
		}
	}
	return "", ""
}

// tooSmall says, once, that cubic has taken something else for a queue.
func (t *tuning) tooSmall(i info) bool {
	switch {
	case t.stuck < 0:
		return false
	case i.SlowStart || i.MinRTT < longPath || i.Resent > 0 || i.Unacked < i.Window-i.Window/5 || i.RTT-i.MinRTT > i.MinRTT/16:
		t.stuck = 0
		return false
	}
	if t.stuck++; t.stuck < stuckLooks {
		return false
	}
	t.stuck = -1
	return true
}

const (
	cubic = "cubic"
	bbr   = "bbr"
)
