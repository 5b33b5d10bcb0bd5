package tcp

import "time"

// Credits say how many bytes each peer may have on the way to this rail. A receiver that several
// send to is where they meet: congestion control of each fills the queue in front of it, and divides
// its rate as losses happen to fall. The receiver sees them all, so it grants
//
//	grant = max(rate / senders * (creditQueue + least round trip), own rate * (creditQueue/2 + least round trip))
//
// of the best rates of late. An equal part keeps the link busy with a queue of creditQueue; who has more,
// because others do not use theirs, keeps it as long as half of that queue is empty. The grant is TCP's
// own, the most that its receive window may be (TCP_WINDOW_CLAMP of tcp(7)): it travels on every
// acknowledgement, holds to the byte, and a slice of 1 MiB need not fit into it. A connection that sends
// alone is not limited: it costs it nothing, not a round trip either. A host is one sender, however many
// connections it has: they divide its grant as they use it, or equally where that is more. What a READ
// brings is limited by the window alike, at the initiator.
//
// A limit that is what a path just delivered would be the less the next time, and so on: as the grants
// are of creditQueue more than that, rates grow until the link is full.
//
// It is a pure function of what it sees.
type credits struct {
	at    time.Duration
	rates [creditSpans]float64 // bytes/s received in all, a ring
	next  int
}

// A credit is what a connection has.
type credit struct {
	Host     string        // of the peer
	Seen     time.Duration // when it was looked at
	Received uint64        // bytes until then
	MinRTT   time.Duration // 0 if not known
	Segment  int64         // most bytes of one
	Grant    int64         // bytes that may be on the way, noLimit at most; 0: no limit

	seen   time.Duration // at the step before; 0: there was none
	last   uint64
	got    float64       // bytes since, in as long as the step took
	rate   float64       // bytes/s, the best of late
	active time.Duration // when it last received as much as a sender does; 0: never
}

const (
	creditQueue = 5 * time.Millisecond
	creditSpans = 20  // of tuneEvery: a second
	creditFade  = 0.9 // in a look: to an eighth in a second
	// A sender is who has sent leastSegments in a look within creditMemory, also one that the others
	// leave no more. So many let losses be noticed by what arrives after them.
	creditMemory  = 4 * tuneEvery
	leastSegments = 4
)

// A sender is a host, as its connections are.
type sender struct {
	active int           // connections that send
	rate   float64       // bytes/s of all, the best of late
	least  time.Duration // round trip; 0 if not known
}

// step looks at all connections of a rail and sets their grants.
func (s *credits) step(now time.Duration, all []*credit) {
	took := now - s.at
	first := s.at == 0
	if !first && took < tuneEvery/2 {
		return // a new connection has been looked at, and no other
	}
	s.at = now
	if first || took <= 0 {
		return
	}
	var sum float64
	senders := 0
	hosts := make(map[string]*sender)
	for _, c := range all {
		c.rate *= creditFade
		if c.got = 0; c.seen > 0 && c.Seen > c.seen { // what is at rest is looked at less often
			c.got = float64(c.Received-c.last) * min(1, took.Seconds()/(c.Seen-c.seen).Seconds())
		}
		c.last, c.seen = c.Received, c.Seen
		c.rate = max(c.rate, c.got/took.Seconds())
		sum += c.got
		if c.got >= float64(leastSegments*c.Segment) {
			c.active = now
		}
		h := hosts[c.Host]
		if h == nil {
			h = &sender{}
			hosts[c.Host] = h
		}
		h.rate += c.rate
		// A connection that was made while others sent has known no round trip without their queue.
		if c.MinRTT > 0 && (h.least == 0 || c.MinRTT < h.least) {
			h.least = c.MinRTT
		}
		if c.active > 0 && now-c.active < creditMemory {
			if h.active++; h.active == 1 {
				senders++
			}
		}
	}
	s.rates[s.next%creditSpans] = sum / took.Seconds()
	s.next++
	best := 0.0
	for _, r := range s.rates {
		best = max(best, r)
	}
	for _, c := range all {
		if c.Grant = 0; senders > 1 {
			h := hosts[c.Host]
			part := best / float64(senders) * (creditQueue + h.least).Seconds()
			own := h.rate * (creditQueue/2 + h.least).Seconds()
			use := max(1/float64(max(h.active, 1)), c.rate/max(h.rate, 1))
			c.Grant = int64(min(max(use*max(part, own), float64(leastSegments*c.Segment)), noLimit))
		}
	}
}
