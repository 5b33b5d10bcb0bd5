package transfer

import (
	"slices"
	"time"

	"kvferry/transport"
)

// A PathChange is a transport.PathEvent on the run's clock.
type PathChange struct {
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

// recoveries sets the timeline against the faults, which are in order. names are
// those of the rails.
func recoveries(tl timeline, faults []Annotation, changes []PathChange, names []string) (all []Recovery) {
	faults = slices.DeleteFunc(slices.Clone(faults), func(a Annotation) bool {
		return a.At < 0 || a.At >= tl.end() || a.Rail >= len(names)
	})
	if len(faults) == 0 {
		return nil
	}
	// What each rail does when all is well: until the first fault.
	base, now := make([]float64, len(names)), make([]float64, len(names))
	every := make([]int, len(names))
	for r := range names {
		base[r] = tl.rate(r, 0, faults[0].At)
		now[r] = base[r]
		every[r] = r
	}
	for i, f := range faults {
		r := Recovery{Annotation: f, Until: tl.end()}
		if i+1 < len(faults) {
			r.Until = faults[i+1].At
		}
		returned := false
		switch f.Action {
		case linkDown, blackHole:
			now[f.Rail] = 0
		case setRate:
			// The kernel's rate has headers in it; what the rail did before has not.
			now[f.Rail] = min(f.Rate*payload, base[f.Rail])
		default:
			returned = true
			now[f.Rail] = base[f.Rail]
		}
		for _, v := range now {
			r.Ideal += v
		}
		r.Own = now[f.Rail]
		for _, c := range changes {
			if c.At >= f.At && c.At < r.Until && c.Rail == names[f.Rail] && (c.State == transport.PathUp) == returned && f.Action != setRate {
				d := c.At - f.At
				r.Detect = &d
				break
			}
		}
		who, want := every, recoveredAt*r.Ideal
		if returned {
			who, want = []int{f.Rail}, returnedAt*r.Own
		}
		from := f.At
		at, ok := tl.since(who, want, f.At, r.Until)
		if ok && f.Action == setRate { // its share follows: neither too much is on it nor nothing
			var follows time.Duration
			if follows, ok = tl.since([]int{f.Rail}, followsAt*r.Own, f.At, r.Until); follows > at {
				at = follows
			}
		}
		if ok {
			d := at - f.At
			r.Recover, from = &d, at
		}
		r.Gap, r.Resent = tl.gap(f.At, r.Until), tl.resent(f.At, r.Until)
		r.Worst = tl.worst(len(names), f.At, min(f.At+time.Second, r.Until))
		for _, rail := range every {
			r.After += tl.rate(rail, from, r.Until)
		}
		r.Share = tl.rate(f.Rail, from, r.Until)
		all = append(all, r)
	}
	return all
}

// payload is what is left of a link's rate for a TCP connection's bytes: at an MTU
// of 1500 each frame of 1514 bytes, as a token bucket counts them, has 1448.
const payload = 1448.0 / 1514
