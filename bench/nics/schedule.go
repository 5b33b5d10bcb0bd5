package nics

import (
	"encoding/json"
	"io"
	"time"

	"kvferry/bench/rail"
	lab "kvferry/lab/nics"
)

// A happening is a step of the failover run: what the lab does when.
type happening struct {
	at   time.Duration // since the load counts
	what string
	// links are the rates from then on of those that carry something.
	links []int64
	do    func(*lab.Lab) error

	action string // of [rail.Annotation], to which nic's rail is subject
	nic    int
	rate   int64 // bits a second; of the action rate only
}

// inflict has the lab do the step. It writes a line with the time at which it began to journal, in the form that
// kvferry rail failover reads.
func (h *happening) inflict(l *lab.Lab, journal io.Writer) error {
	line, err := json.Marshal(map[string]any{"unix_ns": time.Now().UnixNano(), "action": h.action, "nic": h.nic, "rate": h.rate})
	if err == nil {
		_, err = journal.Write(append(line, '\n'))
	}
	if err == nil {
		err = h.do(l)
	}
	return err
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
	{at: 1200 * time.Millisecond, what: "eth1 is cut", links: Even[:3], do: func(l *lab.Lab) error { return l.Cut(cut) }, action: rail.LinkDown, nic: cut},
	{at: 2700 * time.Millisecond, what: "eth1 is restored", links: Even, do: func(l *lab.Lab) error { return l.Restore(cut) }, action: rail.LinkUp, nic: cut},
	{at: 5400 * time.Millisecond, what: "eth2 slows to a tenth", links: append(Even[:3:3], slowRate), do: func(l *lab.Lab) error { return l.SetRate(slowed, slowRate) }, action: "rate", nic: slowed, rate: slowRate},
	{at: 7200 * time.Millisecond, what: "eth2 is as before", links: Even, do: func(l *lab.Lab) error { return l.Clear(slowed) }, action: rail.ClearLink, nic: slowed},
	{at: 9000 * time.Millisecond, what: "eth3 is a black hole", links: Even[:3], do: func(l *lab.Lab) error { return l.BlackHole(silent) }, action: rail.BlackHole, nic: silent},
	{at: 10700 * time.Millisecond, what: "eth3 is as before", links: Even, do: func(l *lab.Lab) error { return l.Clear(silent) }, action: rail.ClearLink, nic: silent},
}

// scheduleEnd is how long the failover run loads.
const scheduleEnd = 13400 * time.Millisecond
