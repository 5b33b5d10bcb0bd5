package selection

import "time"

// A Path is what is to be known of a path.
type Path struct {
	Up       bool
	Order    int           // it stands by while one of a lower order may be used
	Inflight int64         // bytes queued and posted
	Rate     float64       // bytes/s it delivers, see Meter; 0 if not known
	Best     float64       // the highest of late; Meter.Best
	Latency  time.Duration // from posting to completion at least, see Latency; 0 if not known
	Young    bool          // the rate is that of a connection that has just begun, see Meter.Young
	Window   int64         // bytes that its congestion control lets be under way, if Young; 0 if not known
	Probing  bool          // Latency is measured anew
	Resting  bool          // it has carried wrong bytes, see Record
	Strikes  int           // how many batches of them
}

// MaxPaths bounds the paths to a peer: sets of them are bits of a uint64.
const MaxPaths = 64

// Unusable is the rank of a path that must not be used.
const Unusable = 255

// Avoided are the paths, as bits, that a slice with these ranks must not take because
// of their record: those that rest, as long as another is usable; or if all that are
// rest, all but the one with the fewest strikes. Of those that do not rest, all but the ones of the
// lowest order stand by.
func Avoided(paths []Path, ranks func(i int) uint8) (avoid uint64) {
	least, first := -1, -1
	for i := range paths {
		p := &paths[i]
		switch {
		case !p.Up || ranks(i) == Unusable:
		case p.Resting:
			avoid |= 1 << i
			if least < 0 || p.Strikes < paths[least].Strikes {
				least = i
			}
		case first < 0 || p.Order < paths[first].Order:
			first = i
		}
	}
	if first < 0 {
		if least >= 0 {
			avoid &^= 1 << least
		}
		return avoid
	}
	for i := range paths {
		if paths[i].Order > paths[first].Order {
			avoid |= 1 << i
		}
	}
	return avoid
}

// What a path may have under way is what it delivers while a completion comes back, half
// as much more as that varies, and in windowTime:
//
//	limit = best rate of late * (windowTime + windowGain * latency)
//
// enough to be kept busy until the next slices are posted on a busy machine, and no more, as
// that is what a path that slows down or dies makes others wait for. While the latency is not
// reached a rate doubles, or so, in each round trip, because it is limit/latency then. A path whose
// latency is being measured has half of what fits into it. firstWindow is that of a path not
// measured yet.
const (
	windowTime  = 20 * time.Millisecond
	windowGain  = 1.5
	windowStart = 2 // a congestion window grows only while it is in use
	leastWindow = 256 << 10
	firstWindow = 1 << 20
)

func (p *Path) limit() int64 {
	if p.Best == 0 {
		return firstWindow
	}
	if p.Young {
		return max(int64(p.Best*Explained(p.Latency).Seconds()), windowStart*p.Window, firstWindow)
	}
	if p.Probing {
		return max(int64(p.Best*p.Latency.Seconds()/2), leastWindow)
	}
	return max(int64(p.Best*Explained(p.Latency).Seconds()), leastWindow)
}

// Explained is how long a slice may take on a path that has as much under way as it may, and
// delivers what it did.
func Explained(latency time.Duration) time.Duration {
	return windowTime + time.Duration(windowGain*float64(latency))
}

// room says whether the path may have more under way; one slice it always may.
func (p *Path) room() bool { return p.Up && (p.Inflight == 0 || p.Inflight < p.limit()) }

// Choose chooses the path that takes a slice next from a queue, and which one.
// sizes are those of the queue's slices, from its head; ranks say how far each path
// is from their memory: 0 is close, Unusable is out of the question.
//
// The head goes to the close path that is expected to finish it first,
//
//	finish = max(latency, inflight/rate) + size/rate
//
// where inflight/rate is what it takes to deliver what is under way, the way included. Of paths
// that are level, as long ones are that are not full yet, the one with less to deliver takes it.
//
// If that path has as much in flight as it may, any other with room takes the slice that the
// close paths would otherwise come to by the time it will have finished it: they
// deliver finish x sum(rates) bytes by then, of which sum(inflight) are on their way
// and the rest is the head of the queue. So a slow path never holds up what is first
// in the queue, has work as long as the queue is longer than that, and leaves the
// last slices to the fast ones; and a path that is far from the memory takes slices
// only if they would be done later without it.
//
// Paths that rest or stand by are left out, see Avoided.
//
// ok is false if the queue must wait: until a completion makes room, or a path is up.
func Choose(paths []Path, ranks []uint8, sizes func(i int) (int64, bool)) (path, index int, ok bool) {
	head, any := sizes(0)
	if !any {
		return 0, 0, false
	}
	rates := Rates(paths)
	finish := func(i int) float64 { return Finish(&paths[i], rates(i), head) }
	sooner := func(i, than int) bool {
		a, b := finish(i), finish(than)
		return a < b || a == b && float64(paths[i].Inflight+head)/rates(i) < float64(paths[than].Inflight+head)/rates(than)
	}
	avoid := Avoided(paths, func(i int) uint8 { return ranks[i] })
	usable := func(i int) bool { return paths[i].Up && avoid&(1<<i) == 0 }
	best := uint8(Unusable)
	for i := range paths {
		if usable(i) {
			best = min(best, ranks[i])
		}
	}
	if best == Unusable {
		return 0, 0, false
	}
	first := -1
	for i := range paths {
		if usable(i) && ranks[i] == best && (first < 0 || sooner(i, first)) {
			first = i
		}
	}
	if paths[first].room() {
		return first, 0, true
	}
	// Of the others, the one that finishes soonest.
	next := -1
	for i := range paths {
		if i != first && ranks[i] != Unusable && usable(i) && paths[i].room() && (next < 0 || sooner(i, next)) {
			next = i
		}
	}
	if next < 0 {
		return 0, 0, false
	}
	var rate, inflight float64
	for i := range paths {
		if i != next && usable(i) && ranks[i] == best {
			rate += rates(i)
			inflight += float64(paths[i].Inflight)
		}
	}
	ahead := finish(next)*rate - inflight
	for at := 0; ; at++ {
		size, any := sizes(at)
		if !any {
			return 0, 0, false // the close paths will have done it all
		}
		if ahead < float64(size) {
			return next, at, true
		}
		ahead -= float64(size)
	}
}

// Finish is how many seconds it takes a path of a rate until it has completed bytes that are
// posted now.
func Finish(p *Path, rate float64, bytes int64) float64 {
	return max(p.Latency.Seconds(), float64(p.Inflight)/rate) + float64(bytes)/rate
}

// Rates is a path's rate, or the mean of the others' while it is not known; of one whose window
// is growing still not more than that soon lets through.
func Rates(paths []Path) func(i int) float64 {
	known := func(i int) bool { return paths[i].Rate > 0 && !paths[i].Young }
	sum, n := 0.0, 0
	for i := range paths {
		if known(i) {
			sum, n = sum+paths[i].Rate, n+1
		}
	}
	mean := 1e9
	if n > 0 {
		mean = sum / float64(n)
	}
	return func(i int) float64 {
		p := &paths[i]
		switch {
		case known(i):
			return p.Rate
		case p.Young && p.Window > 0 && p.Latency > 0:
			return min(mean, windowStart*float64(p.Window)/p.Latency.Seconds())
		}
		return mean
	}
}
