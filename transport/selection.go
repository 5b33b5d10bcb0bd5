package transport

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Selection says how the slices of a batch are spread over the paths to its peer.
type Selection string

const (
	// Affinity gives a slice to the path that is expected to finish it first, by
	// the bytes it has under way and the rate it was seen to deliver, among those
	// whose rails sit closest to the memory; others help when that is faster.
	Affinity Selection = "affinity"
	// Static gives each path an equal, contiguous share of every batch.
	Static Selection = "static"
	// RoundRobin gives the paths slices in turn.
	RoundRobin Selection = "round-robin"
	// Single uses one path, the first that is up; the others stand by.
	Single Selection = "single"
)

// Selections are all of them, the default first.
var Selections = []Selection{Affinity, Static, RoundRobin, Single}

// ParseSelection reads the name of a selection.
func ParseSelection(s string) (Selection, error) {
	if i := slices.Index(Selections, Selection(s)); i >= 0 {
		return Selections[i], nil
	}
	names := make([]string, len(Selections))
	for i, v := range Selections {
		names[i] = string(v)
	}
	return "", fmt.Errorf("%q: use one of %s", s, strings.Join(names, ", "))
}

// A candidate is a path as selection sees it.
type candidate struct {
	up       bool
	inflight int64   // bytes queued and posted
	rate     float64 // bytes/s it delivers; 0 if not known
	resting  bool    // it has carried wrong bytes, see record
	strikes  int     // how many batches of them
}

// unseen is the rank of a path that must not be used.
const unseen = 255

// avoided are the paths, as bits, that a slice with these ranks must not take because
// of their record: those that rest, as long as another is usable; or if all that are
// rest, all but the one with the fewest strikes.
func avoided(cs []candidate, ranks func(i int) uint8) (avoid uint64) {
	least := -1
	others := false
	for i := range cs {
		switch {
		case !cs[i].up || ranks(i) == unseen:
		case !cs[i].resting:
			others = true
		default:
			avoid |= 1 << i
			if least < 0 || cs[i].strikes < cs[least].strikes {
				least = i
			}
		}
	}
	if least >= 0 && !others {
		avoid &^= 1 << least
	}
	return avoid
}

// What a path may have under way is what it delivers in windowTime: enough to be
// kept busy while a completion comes back and the next slices are posted on a busy
// machine, and no more, as that is what a path that slows down or dies makes others
// wait for. firstWindow is that of a path not measured yet.
const (
	windowTime  = 20 * time.Millisecond
	leastWindow = 256 << 10
	firstWindow = 1 << 20
)

func (c *candidate) window() int64 {
	if c.rate == 0 {
		return firstWindow
	}
	return max(int64(c.rate*windowTime.Seconds()), leastWindow)
}

// room says whether the path may have more under way; one slice it always may.
func (c *candidate) room() bool { return c.up && (c.inflight == 0 || c.inflight < c.window()) }

// selectPath chooses the path that takes a slice next from a queue, and which one.
// sizes are those of the queue's slices, from its head; ranks say how far each path
// is from their memory: 0 is close, unseen is out of the question.
//
// The head goes to the close path that is expected to finish it first,
//
//	finish = (inflight + size) / rate
//
// If that path has as much in flight as it may, any other with room takes the slice that the
// close paths would otherwise come to by the time it will have finished it: they
// deliver finish x sum(rates) bytes by then, of which sum(inflight) are on their way
// and the rest is the head of the queue. So a slow path never holds up what is first
// in the queue, has work as long as the queue is longer than that, and leaves the
// last slices to the fast ones; and a path that is far from the memory takes slices
// only if they would be done later without it.
//
// Paths that rest are left out, see avoided.
//
// ok is false if the queue must wait: until a completion makes room, or a path is up.
func selectPath(cs []candidate, ranks []uint8, sizes func(i int) (int64, bool)) (path, index int, ok bool) {
	head, any := sizes(0)
	if !any {
		return 0, 0, false
	}
	rates := usualRate(cs)
	finish := func(i int) float64 { return float64(cs[i].inflight+head) / rates(i) }
	avoid := avoided(cs, func(i int) uint8 { return ranks[i] })
	usable := func(i int) bool { return cs[i].up && avoid&(1<<i) == 0 }
	best := uint8(unseen)
	for i := range cs {
		if usable(i) {
			best = min(best, ranks[i])
		}
	}
	if best == unseen {
		return 0, 0, false
	}
	first := -1
	for i := range cs {
		if usable(i) && ranks[i] == best && (first < 0 || finish(i) < finish(first)) {
			first = i
		}
	}
	if cs[first].room() {
		return first, 0, true
	}
	// Of the others, the one that finishes soonest.
	next := -1
	for i := range cs {
		if i != first && ranks[i] != unseen && usable(i) && cs[i].room() && (next < 0 || finish(i) < finish(next)) {
			next = i
		}
	}
	if next < 0 {
		return 0, 0, false
	}
	var rate, inflight float64
	for i := range cs {
		if i != next && usable(i) && ranks[i] == best {
			rate += rates(i)
			inflight += float64(cs[i].inflight)
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

// usualRate is a path's rate, or the mean of the others' while it is not known.
func usualRate(cs []candidate) func(i int) float64 {
	sum, n := 0.0, 0
	for i := range cs {
		if cs[i].rate > 0 {
			sum, n = sum+cs[i].rate, n+1
		}
	}
	mean := 1e9
	if n > 0 {
		mean = sum / float64(n)
	}
	return func(i int) float64 {
		if cs[i].rate > 0 {
			return cs[i].rate
		}
		return mean
	}
}
