package tcp

import (
	"fmt"
	"time"
)

// Losses are those of all connections with one host: they go the same way, and where they are many each
// loses little. They say which congestion control all of them have. cubic fills a clean link, and takes
// each lost packet for a queue that is full. On a path that loses packets although no queue stands in it,
// as its round trips are as short as ever, it is wrong, and bbr, which goes by rate and round trip, is
// right. bbr costs some percent on clean links and 40 % on loopback, so a host goes to it by what its path
// does, and back:
//
//	       lossRuns looks in a row: lossShare lost, and round trips short;
//	       likewise with any loss, if a window is less than half of what it was: less is seen then;
//	       or stuckLooks in a row: it grows slowly, and nothing says why
//	cubic ───────────────────────────────────────────────────────────────► bbr
//	  ▲                                                                     │
//	  └──────────── nothing lost for calm, twice as long each time ◄────────┘
//
// cubic ends slow start when round trips or bursts of acknowledgements look like a queue (HyStart). On
// a long path that is an error now and then, from which cubic takes a minute to recover: its window is
// in use, nothing was ever lost, and round trips are short. That brings a host to bbr once.
//
// It is a pure function of what it sees.
type losses struct {
	users int // connections

	to, why      string        // what they have; "" is cubic, before anything was decided
	least        time.Duration // round trip; 0 if not known
	sent, resent int64         // segments since the last look at losses
	looked       time.Duration // when that was
	bad          int           // looks in a row that found losses without a queue
	small        bool          // a window was too small
	calm         time.Duration // how long nothing must be lost on bbr for cubic
	lossless     time.Duration // since when nothing was lost
	carried      time.Duration // when something was sent
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
	// shrunkLook is longer than cubic takes to mend what one burst lost.
	shrunkLook = time.Second
	// stuckLooks are half a second: five round trips of 100 ms.
	stuckLooks = 10
	leastCalm  = 30 * time.Second
	mostCalm   = 32 * time.Minute
	// quiet is how long nothing must be sent for a host to show nothing: two looks at what is at rest.
	quiet = 20 * tuneEvery
)

const (
	cubic = "cubic"
	bbr   = "bbr"
)

// congestion says which algorithm a connection is to have instead of its own, if any.
func (t *tuning) congestion(now time.Duration, i info) (to, why string) {
	l := t.losses
	sent, resent := int64(i.Sent-t.last.Sent), int64(i.Resent-t.last.Resent)
	if t.at == 0 {
		sent, resent = 0, 0
	}
	if t.widest = max(t.widest, i.Window); i.Congestion != cubic {
		t.widest = 0
	}
	l.step(now, i, sent, resent, i.noQueue() && i.Window < t.widest/2)
	if l.to != bbr && !l.small && t.tooSmall(i) {
		l.small = true
		l.become(now, bbr, fmt.Sprintf("slow start ended at %d bytes although nothing was lost and no queue stands: a round trip takes %v, the least %v", i.Window, i.RTT.Round(10*time.Microsecond), i.MinRTT.Round(10*time.Microsecond)))
	}
	if l.to == "" || l.to == i.Congestion {
		return "", ""
	}
	return l.to, l.why
}

// become has all connections have an algorithm.
func (l *losses) become(now time.Duration, to, why string) {
	l.to, l.why, l.sent, l.resent, l.bad, l.lossless = to, why, 0, 0, 0, now
}

// step takes what one connection has sent, and lost, since it was last looked at, and whether its
// window has shrunk without a queue. It has lost less than nothing if what was taken for lost has arrived.
func (l *losses) step(now time.Duration, i info, sent, resent int64, shrunk bool) {
	if l.calm == 0 {
		l.calm, l.lossless, l.carried = leastCalm, now, now
	}
	if i.MinRTT > 0 && (l.least == 0 || i.MinRTT < l.least) {
		l.least = i.MinRTT
	}
	l.sent += sent
	l.resent = max(l.resent+resent, 0)
	if l.to == bbr {
		if resent > 0 || now-l.carried > quiet { // a path that is not used shows nothing
			l.lossless = now
		}
		if sent > 0 {
			l.carried = now
		}
		if calm := l.calm; now-l.lossless >= calm {
			l.calm = min(2*calm, mostCalm)
			l.become(now, cubic, fmt.Sprintf("nothing was lost for %v", calm))
		}
		return
	}
	share := float64(l.resent) / float64(max(l.sent, 1))
	shrunk = shrunk && l.resent > 0 && now-l.looked >= max(shrunkLook, 10*l.least)
	if l.sent < lossLook && l.resent < lossSeen && (l.resent < lossFew || share < lossMuch) && !shrunk {
		return
	}
	l.sent, l.resent, l.looked = 0, 0, now
	queue := i.RTT - l.least - i.Jitter
	if share < lossShare || queue > max(l.least/2, longPath) {
		l.bad = 0
		return
	}
	if l.bad++; l.bad < lossRuns {
		return
	}
	l.become(now, bbr, fmt.Sprintf("%.2g %% of its packets are lost and no queue stands in it: a round trip takes %v, the least %v", 100*share, i.RTT.Round(10*time.Microsecond), l.least.Round(10*time.Microsecond)))
}

// noQueue says of a long path that nothing waits on it.
func (i *info) noQueue() bool { return i.MinRTT >= longPath && i.RTT-i.MinRTT <= i.MinRTT/16 }

// tooSmall says that cubic has taken something else for a queue.
func (t *tuning) tooSmall(i info) bool {
	if i.SlowStart || i.Resent > 0 || i.Unacked < i.Window-i.Window/5 || !i.noQueue() {
		t.stuck = 0
		return false
	}
	t.stuck++
	return t.stuck >= stuckLooks
}
