package tcp

import (
	"fmt"
	"testing"
	"time"
)

// A receiver is the connections of a rail as they are looked at.
type receiver struct {
	s   credits
	now time.Duration
	all []*credit
}

// join adds hosts with a connection each.
func (r *receiver) join(n int, rtt time.Duration) {
	for range n {
		r.connect(1, fmt.Sprintf("10.0.0.%d", len(r.all)), rtt)
	}
}

// connect adds connections of a host.
func (r *receiver) connect(n int, host string, rtt time.Duration) {
	for range n {
		r.all = append(r.all, &credit{Host: host, MinRTT: rtt, Segment: 1448})
	}
}

// look has each connection receive at a rate, bytes/s, for some looks.
func (r *receiver) look(looks int, rate func(i int) float64) {
	for range looks {
		r.now += tuneEvery
		for i, c := range r.all {
			c.Received += uint64(rate(i) * tuneEvery.Seconds())
			c.Seen = r.now
		}
		r.s.step(r.now, r.all)
	}
}

const wire = 60e6 // bytes/s

func share(n int) func(int) float64 { return func(int) float64 { return wire / float64(n) } }

// granted fails unless each of the connections has about as much.
func (r *receiver) granted(t *testing.T, what string, from, to int, want float64) {
	t.Helper()
	for i, c := range r.all[from:to] {
		if float64(c.Grant) < 0.95*want || float64(c.Grant) > 1.05*want {
			t.Fatalf("%s: connection %d of %d may have %d bytes on the way, not %.0f", what, from+i, len(r.all), c.Grant, want)
		}
	}
}

// TestCredits: one sender has no limit; several have the same, of a queue that is short.
func TestCredits(t *testing.T) {
	whole := wire * (creditQueue + ms).Seconds()
	var r receiver
	r.join(1, ms)
	r.look(100, share(1))
	r.granted(t, "alone", 0, 1, 0)

	// Two: the first loses what it had within two seconds.
	r.join(1, ms)
	r.look(2, share(2))
	r.granted(t, "the second", 1, 2, whole/2)
	if first := float64(r.all[0].Grant); first < whole/2 || first > whole {
		t.Errorf("the first may have %.0f bytes on the way", first)
	}
	r.look(40, share(2))
	r.granted(t, "two", 0, 2, whole/2)

	r.join(14, ms)
	r.look(60, share(16))
	r.granted(t, "sixteen", 0, 16, whole/16)

	// One that sends nothing.
	r.join(1, ms)
	r.look(20, func(i int) float64 {
		if i == 16 {
			return 0
		}
		return wire / 16
	})
	r.granted(t, "one is silent", 0, 17, whole/16)

	// Some die, and others end: what is left is theirs once they have sent nothing for a while.
	r.all = r.all[:4]
	r.look(1, share(4))
	r.granted(t, "twelve are gone", 0, 4, whole/4)
	two := func(i int) float64 { return wire / 2 * float64(1-i/2) }
	r.look(int(creditMemory/tuneEvery)+1, two)
	r.granted(t, "two do not use what they have", 0, 4, whole/2)
	one := func(i int) float64 { return wire * float64(max(1-i, 0)) }
	r.look(int(creditMemory/tuneEvery)+1, one)
	r.granted(t, "one sends", 0, 4, 0)
}

// TestCreditsHost: a host has what one sender has, over however many connections, also those that were
// made while others sent and have known no round trip without a queue. They divide it by use: one that
// sends little, as an express does, takes little from the others.
func TestCreditsHost(t *testing.T) {
	whole := wire * (creditQueue + ms).Seconds()
	var r receiver
	r.connect(4, "a", ms)
	r.look(30, share(4))
	r.granted(t, "alone", 0, 4, 0)
	r.connect(1, "b", ms)
	r.look(60, func(i int) float64 {
		if i == 4 {
			return wire / 2
		}
		return wire / 8
	})
	r.granted(t, "four of one host", 0, 4, whole/2/4)
	r.granted(t, "one of another", 4, 5, whole/2)
	r.connect(1, "b", 20*ms)
	r.look(60, func(i int) float64 {
		switch i {
		case 4:
			return wire / 2 * 9 / 10
		case 5:
			return wire / 2 / 10
		}
		return wire / 8
	})
	r.granted(t, "most of a host", 4, 5, whole/2*9/10)
	r.granted(t, "its express", 5, 6, whole/2/2)
	r.granted(t, "the four", 0, 4, whole/2/4)
}

// TestCreditsMost: no grant is more than the kernel takes, however fast and far its host is.
func TestCreditsMost(t *testing.T) {
	var r receiver
	r.join(2, 10*time.Second)
	r.look(30, func(int) float64 { return 50e9 })
	for i, c := range r.all {
		if c.Grant != noLimit {
			t.Errorf("connection %d may have %d bytes on the way", i, c.Grant)
		}
	}
}

// TestCreditsStarved: who is left next to nothing is a sender all the same, and has an equal part.
func TestCreditsStarved(t *testing.T) {
	var r receiver
	r.join(16, ms)
	r.look(30, func(i int) float64 {
		if i < 12 {
			return wire / 256
		}
		return wire * (1 - 12.0/256) / 4
	})
	r.granted(t, "starved", 0, 12, wire*(creditQueue+ms).Seconds()/16)
	var sum int64
	for _, c := range r.all {
		sum += c.Grant
	}
	if most := 2 * wire * (creditQueue + ms).Seconds(); float64(sum) > most {
		t.Errorf("%d bytes may be on the way, more than %.0f", sum, most)
	}
}

// grow plays a link on which each sender gets what its grant lets through in a round trip, as far as it
// has something to send and the link is not full.
func (r *receiver) grow(looks int, rtt time.Duration, wants func(i int) float64) {
	rate := make([]float64, len(r.all))
	for range looks {
		sum := 0.0
		for i, c := range r.all {
			if rate[i] = wants(i); c.Grant > 0 {
				rate[i] = min(rate[i], float64(c.Grant)/rtt.Seconds())
			}
			sum += rate[i]
		}
		r.look(1, func(i int) float64 { return rate[i] * min(1, wire/sum) })
	}
}

// TestCreditsGrow: a limit by what a path has delivered does not keep it there, however long the round
// trip is: a link that was slow is full within three seconds, and one sender has what the other leaves.
func TestCreditsGrow(t *testing.T) {
	for _, rtt := range []time.Duration{ms, 10 * ms, 40 * ms} {
		for _, little := range []float64{wire, wire / 7} {
			var r receiver
			r.join(2, rtt)
			r.look(30, func(int) float64 { return wire / 20 })
			r.grow(60, rtt, func(i int) float64 {
				if i == 1 {
					return little
				}
				return wire
			})
			rest := max(wire/2, wire-little)
			if got, need := float64(r.all[0].Grant), rest*rtt.Seconds(); got < need {
				t.Errorf("round trip %v, the other sends %.0f: %.0f bytes, of %.0f that fill the link", rtt, little, got, need)
			}
		}
	}
}

// TestCreditsFar: who is far may have as much more on the way as its round trip takes.
func TestCreditsFar(t *testing.T) {
	var r receiver
	r.join(1, ms)
	r.join(1, 40*ms)
	r.look(30, share(2))
	r.granted(t, "near", 0, 1, wire*(creditQueue+ms).Seconds()/2)
	r.granted(t, "far", 1, 2, wire*(creditQueue+40*ms).Seconds()/2)
}

// TestCreditsRequests: few bytes, as acknowledgements are, make nobody a sender; the requests of READs
// may, and take nothing from who sends much.
func TestCreditsRequests(t *testing.T) {
	for little, want := range map[float64]float64{1e5: 0, 1e6: (wire - 7e6) * (creditQueue/2 + ms).Seconds()} {
		var r receiver
		r.join(8, ms)
		r.look(100, func(i int) float64 {
			if i == 0 {
				return wire - 7*little
			}
			return little
		})
		r.granted(t, "beside requests", 0, 1, want)
	}
	var r receiver
	r.join(256, ms)
	r.look(100, share(256))
	r.granted(t, "256", 0, 256, leastSegments*1448)
}

// TestCreditsKicked: connections that are made one after the other do not take from others what they
// were seen to send: between two looks nothing is known.
func TestCreditsKicked(t *testing.T) {
	var r receiver
	r.join(16, ms)
	r.look(100, share(16))
	before := r.all[0].Grant
	for range 40 {
		r.now += ms / 4
		r.s.step(r.now, r.all)
	}
	r.look(1, share(16))
	r.granted(t, "after 40 steps", 0, 16, float64(before))
}
