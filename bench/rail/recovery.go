package rail

// This file says how several rails under load took the faults of their links: when
// the engine noticed, when the others had taken over, how long nothing moved, how much was
// sent again.
//
//	Sample ... Sample ──▶ timeline ─┐
//	Annotation: what was done, when ├──▶ Recoveries ──▶ Recovery, one a fault
//	pathChange: what the engine said ┘
//
// All are facts of a run that is over; nothing here measures. Times are since the load
// began to count, rates bytes a second.

import (
	"slices"
	"time"

	"kvferry/transport"
)

// A pathChange is a transport.PathEvent on the run's clock.
type pathChange struct {
	At    time.Duration       `json:"at_ns"`
	Rail  string              `json:"rail"`
	Peer  string              `json:"peer"`
	State transport.PathState `json:"state"`
	Err   string              `json:"error,omitempty"`
}

// A Recovery is how the rails took one fault. Times are since the fault; nil is
// that it did not happen before the next fault or the end.
type Recovery struct {
	Annotation
	Until time.Duration `json:"until_ns"` // the next fault, or the end of the run
	// Detect is when the engine said that the rail's path is down or stalled, or, of
	// a link that is back, that it is up. A slower link is nothing to be said.
	Detect *time.Duration `json:"detect_ns"`
	// Recover is when the rails have moved, over the next half a second, 95 % of
	// what they should, and one that was slowed 80 % of what is left to it; of a link that is back, when that rail has moved 90 % of what
	// it did before.
	Recover *time.Duration `json:"recover_ns"`
	// Gap is the longest time in which nothing completed on any rail.
	Gap time.Duration `json:"gap_ns"`
	// Worst is the lowest rate over 100 ms within a second of the fault, in bytes a
	// second.
	Worst float64 `json:"worst_bytes_per_s"`
	// Resent are bytes that were posted again.
	Resent int64 `json:"resent_bytes"`
	// Ideal is what the rails should do after the fault in bytes a second: what
	// each did before any, less what was taken from it.
	Ideal float64 `json:"ideal_bytes_per_s"`
	// After is what they did once recovered.
	After float64 `json:"after_bytes_per_s"`
	// Share is the rail's part in that, in bytes a second, and Own what it should be.
	Share float64 `json:"share_bytes_per_s"`
	Own   float64 `json:"share_ideal_bytes_per_s"`
}

// Recoveries sets the timeline against the faults, which are in order. names are those of the
// rails. Faults outside of the timeline, or of other rails, are left out.
func Recoveries(tl timeline, faults []Annotation, changes []pathChange, names []string) (all []Recovery) {
	faults = slices.DeleteFunc(slices.Clone(faults), func(a Annotation) bool {
		return a.At < 0 || a.At >= tl.End() || a.Rail >= len(names)
	})
	if len(faults) == 0 {
		return nil
	}
	// What each rail does when all is well: until the first fault.
	base := make([]float64, len(names))
	for r := range names {
		base[r] = tl.Rate(r, 0, faults[0].At)
	}
	now := slices.Clone(base) // what each should do
	for i, f := range faults {
		r := Recovery{Annotation: f, Until: tl.End()}
		if i+1 < len(faults) {
			r.Until = faults[i+1].At
		}
		now[f.Rail] = f.leaves(base[f.Rail])
		for _, v := range now {
			r.Ideal += v
		}
		r.Own = now[f.Rail]
		r.detect(changes, names[f.Rail])
		r.measure(tl, len(names))
		all = append(all, r)
	}
	return all
}

// leaves is what a rail should do after the fault that did base before any.
func (a Annotation) leaves(base float64) float64 {
	switch a.Action {
	case LinkDown, BlackHole:
		return 0
	case setRate:
		// The kernel's rate has headers in it; what the rail did before has not.
		return min(a.Rate*Payload, base)
	}
	return base
}

// returned says that the link is as it was at first.
func (a Annotation) returned() bool {
	return a.Action != LinkDown && a.Action != BlackHole && a.Action != setRate
}

// detect finds the first change of the rail's path that says what the fault did.
func (r *Recovery) detect(changes []pathChange, rail string) {
	if r.Action == setRate {
		return
	}
	for _, c := range changes {
		if c.At >= r.At && c.At < r.Until && c.Rail == rail && (c.State == transport.PathUp) == r.returned() {
			d := c.At - r.At
			r.Detect = &d
			return
		}
	}
}

// measure fills in what the timeline of so many rails says of the time after the fault.
func (r *Recovery) measure(tl timeline, rails int) {
	every := make([]int, rails)
	for i := range every {
		every[i] = i
	}
	own := []int{r.Rail}
	who, want := every, recoveredAt*r.Ideal
	if r.returned() {
		who, want = own, returnedAt*r.Own
	}
	at, ok := tl.since(who, want, r.At, r.Until)
	if ok && r.Action == setRate { // its share follows: neither too much is on it nor nothing
		var follows time.Duration
		if follows, ok = tl.since(own, followsAt*r.Own, r.At, r.Until); follows > at {
			at = follows
		}
	}
	from := r.At
	if ok {
		d := at - r.At
		r.Recover, from = &d, at
	}
	r.Gap, r.Resent = tl.gap(r.At, r.Until), tl.resent(r.At, r.Until)
	r.Worst = tl.worst(rails, r.At, min(r.At+time.Second, r.Until))
	for _, rail := range every {
		r.After += tl.Rate(rail, from, r.Until)
	}
	r.Share = tl.Rate(r.Rail, from, r.Until)
}

// Payload is what is left of a link's rate for a TCP connection's bytes: at an MTU
// of 1500 each frame of 1514 bytes, as a token bucket counts them, has 1448.
const Payload = 1448.0 / 1514
