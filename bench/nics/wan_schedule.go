package nics

import (
	"fmt"
	"time"

	"kvferry/bench/rail"
	lab "kvferry/lab/nics"
)

// silence and its likes are steps of a schedule on link 3. A black hole in one direction is a loss of all
// packets there; to the rails it is a black hole.

func hole(at time.Duration, what string, do func(*lab.Lab) error) happening {
	return happening{at: at, what: what, links: halves[:3], action: rail.BlackHole, nic: silent, do: do}
}

func whole(at time.Duration, what string, do func(*lab.Lab) error) happening {
	return happening{at: at, what: what, links: halves, action: rail.ClearLink, nic: silent, do: do}
}

// lose has a link lose a share of what host 2, which writes, sends and of what it receives.
func lose(share string) func(*lab.Lab) error {
	return func(l *lab.Lab) error { return l.SetCondition(silent, "loss", share) }
}

func clearSilent(l *lab.Lab) error { return l.Clear(silent) }

// silentCase: a link that says nothing is found out, whichever of its directions is silent, and
// carries its share again when it is back.
var silentCase = wanCase{
	name: "silent", what: "RTT 0.4 ms, a link falls silent", links: halves, conditions: long(4, 200*time.Microsecond),
	schedule: []happening{
		hole(1500*ms, "silent both ways", func(l *lab.Lab) error { return l.BlackHole(silent) }),
		whole(3000*ms, "back from that", clearSilent),
		hole(5500*ms, "data is lost", lose("0%/100%")),
		whole(7000*ms, "back from that", clearSilent),
		hole(9500*ms, "answers are lost", lose("100%/0%")),
		whole(11000*ms, "back from that", clearSilent),
	},
	end: 13500 * ms,
	limits: []wanLimit{
		{0, "silent both ways: found", 50, found},
		{2, "data is lost: found", 50, found},
		{4, "answers are lost: found", 50, found},
		{1, "silent both ways, then back: full share", 1000, back},
		{3, "data was lost, then back: full share", 1000, back},
		{5, "answers were lost, then back: full share", 1000, back},
	},
}

// flaps are so many in a minute, each for flapOut.
const (
	flaps     = 10
	flapEvery = time.Minute / flaps
	flapOut   = 600 * ms
)

// flapsCase: a cable that was out ten times in a minute carries its share again as soon as one
// that was out once.
var flapsCase = func() wanCase {
	c := wanCase{name: "flaps", what: "RTT 2 ms, ten flaps in a minute", links: halves, conditions: long(4, ms)}
	for i := range flaps {
		at := 1500*ms + time.Duration(i)*flapEvery
		c.schedule = append(c.schedule,
			happening{at: at, what: fmt.Sprintf("out for time %d", i+1), links: halves[:3], action: rail.LinkDown, nic: silent, do: func(l *lab.Lab) error { return l.Cut(silent) }},
			happening{at: at + flapOut, what: fmt.Sprintf("in after time %d", i+1), links: halves, action: rail.LinkUp, nic: silent, do: func(l *lab.Lab) error { return l.Restore(silent) }},
		)
	}
	last := len(c.schedule) - 1
	c.end = c.schedule[last].at + 3*time.Second
	c.limits = []wanLimit{{last, "after ten flaps in a minute: full rate", 1000, back}}
	return c
}()
