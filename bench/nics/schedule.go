package nics

import (
	"time"

	lab "kvferry/lab/nics"
)

// A happening is a step of the failover run: what the lab does when.
type happening struct {
	at   time.Duration // since the load counts
	what string
	// links are the rates from then on of those that carry something.
	links []int64
	do    func(*lab.Lab) error
}

// The steps of the schedule.
const (
	cutStep = iota
	restoreStep
	slowStep
	fastStep
	holeStep
	wholeStep
)

// slowRate is a tenth of an even link.
var slowRate = Even[slowed] / 10

// The links that things happen to.
const (
	cut    = 1
	slowed = 2
	silent = 3
)

// schedule is what happens to four links under load. Between two steps is the time
// that the limits give the first, and the half second over which a rate must hold.
var schedule = []happening{
	{1200 * time.Millisecond, "eth1 is cut", Even[:3], func(l *lab.Lab) error { return l.Cut(cut) }},
	{2700 * time.Millisecond, "eth1 is restored", Even, func(l *lab.Lab) error { return l.Restore(cut) }},
	{5400 * time.Millisecond, "eth2 slows to a tenth", append(Even[:3:3], slowRate), func(l *lab.Lab) error { return l.SetRate(slowed, slowRate) }},
	{7200 * time.Millisecond, "eth2 is as before", Even, func(l *lab.Lab) error { return l.Clear(slowed) }},
	{9000 * time.Millisecond, "eth3 is a black hole", Even[:3], func(l *lab.Lab) error { return l.BlackHole(silent) }},
	{10700 * time.Millisecond, "eth3 is as before", Even, func(l *lab.Lab) error { return l.Clear(silent) }},
}

// scheduleEnd is how long the failover run loads.
const scheduleEnd = 13400 * time.Millisecond
