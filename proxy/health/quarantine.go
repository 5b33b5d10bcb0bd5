package health

import (
	"time"

	"kvferry/proto"
)

// What rests, for how long, and when that is forgotten.
const (
	// pairStrikes and nodeStrikes are the failures after which a pair of nodes and a node
	// rest. A failure of a pair is one of both its nodes too, and a node that fails with
	// two others has had as many.
	pairStrikes = 2
	nodeStrikes = 4
	// restMin doubles with each rest in a row, up to restMax.
	restMin = time.Second
	restMax = time.Minute
	// trialWithin is how long the outcome of a trial is waited for.
	trialWithin = 30 * time.Second
	// forgive is how long a strike counts: what fails once in a minute is no reason.
	forgive = time.Minute
)

// A subject is a node, or a pair of a prefill and a decode node with the network
// between them.
type Subject struct{ Node, Peer string }

// Subjects are what the outcome on a node says something of: the node, and if another has the
// other leg, the pair of them.
func Subjects(n, with *proto.NodeInfo) []Subject {
	s := []Subject{{Node: n.Id}}
	switch {
	case with == nil || with == n:
	case n.Role == proto.Role_ROLE_PREFILL:
		s = append(s, Subject{Node: n.Id, Peer: with.Id})
	default:
		s = append(s, Subject{Node: with.Id, Peer: n.Id})
	}
	return s
}

// Quarantine keeps what fails from being chosen, as a state machine: it has no clock.
//
//	good ── strikes ──▶ resting ── its time is up ──▶ on trial ── good ──▶ good
//	                       ▲                             │
//	                       └───────── bad, twice as long ┘
//
// One request at a time tries a subject again. A good outcome takes a strike away, so that
// of two failures in ten nothing comes.
type Quarantine struct {
	of map[Subject]*conduct
}

// conduct is how a subject has done. One that has done well for a while has none.
type conduct struct {
	strikes int
	last    time.Duration // strike
	rests   int           // in a row
	total   uint64        // rests ever
	until   time.Duration // it rests
	trial   time.Duration // when it was last tried, 0 for not
	onTrial bool          // after a rest, until an outcome
}

// NewQuarantine has nobody resting.
func NewQuarantine() *Quarantine { return &Quarantine{of: make(map[Subject]*conduct)} }

func (s Subject) limit() int {
	if s.Peer != "" {
		return pairStrikes
	}
	return nodeStrikes
}

// Failed counts a failure. It reports for how long the subject rests, 0 if it does not.
func (q *Quarantine) Failed(now time.Duration, s Subject) time.Duration {
	c := q.of[s]
	if c == nil {
		c = &conduct{}
		q.of[s] = c
	}
	if now < c.until {
		return 0 // of a request that was under way when the rest began
	}
	if now-c.last > forgive && !c.onTrial {
		c.strikes, c.rests = 0, 0
	}
	c.strikes++
	c.last = now
	if c.strikes < s.limit() && !c.onTrial {
		return 0
	}
	rest := min(restMin<<min(c.rests, 10), restMax)
	c.rests++
	c.total++
	c.until, c.strikes, c.trial, c.onTrial = now+rest, 0, 0, true
	return rest
}

// Succeeded counts a good outcome. It reports whether that ended a quarantine.
func (q *Quarantine) Succeeded(now time.Duration, s Subject) (back bool) {
	c := q.of[s]
	if c == nil || now < c.until {
		return false
	}
	back = c.onTrial
	c.onTrial, c.trial = false, 0
	c.strikes = max(c.strikes-1, 0)
	if !back && c.strikes == 0 {
		c.rests = 0
	}
	return back
}

// Resting reports whether the subject is not to be chosen now.
func (q *Quarantine) Resting(now time.Duration, s Subject) bool {
	c := q.of[s]
	return c != nil && (now < c.until || c.trial > 0 && now-c.trial < trialWithin)
}

// Chosen notes that the subject was chosen all the same, or for its trial.
func (q *Quarantine) Chosen(now time.Duration, s Subject) {
	if c := q.of[s]; c != nil && c.onTrial && now >= c.until {
		c.trial = now
	}
}

// Rests calls each for every subject that has failed of late, with whether it rests now and how
// often it was put to rest.
func (q *Quarantine) Rests(now time.Duration, each func(node, peer string, resting bool, total uint64)) {
	for s, c := range q.of {
		each(s.Node, s.Peer, q.Resting(now, s), c.total)
	}
}

// Forget drops what is known of a node that has left, and of its pairs.
func (q *Quarantine) Forget(node string) {
	for s := range q.of {
		if s.Node == node || s.Peer == node {
			delete(q.of, s)
		}
	}
}
