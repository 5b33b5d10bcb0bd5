package selection

import "time"

// A Sign is what a path has shown since it was looked at last.
type Sign struct {
	Up      bool          // connected; all else is of a connected path
	Waiting bool          // slices are under way on it
	Alive   bool          // something has come back over it
	Asked   bool          // the peer's kernel owes an answer, and was heard of last before that
	Answer  time.Duration // how long one takes, with what that varies by
	Lost    uint64        // packets so far that did not arrive
}

// A Silence finds out which of the paths to a peer is dead although its connection stands: a
// switch that forgets, a cable that lost one of its directions. It is a pure function of what it
// is told, every SilenceLook or so.
//
//	        silencePoke without a sign       mostSilence, and another was heard of since
//	alive ───────────────────────────► quiet ───────────────────────────────────────────► left
//	  ▲                                 │  it is poked, and so are paths with nothing under way
//	  └──────────── a sign ◄────────────┘
//
// Only what a kernel answers by itself counts as an answer: a peer's process may be late by more
// than this on a busy machine. For the same reason time in which nobody looked does not count, as it
// was this process that was late, and there has to be a witness: a path to the same peer that was
// heard of while this one was quiet. And a path that loses packets anyway may lose the one that is
// sent again, too, and is then silent until TCP tries once more, after 200 ms or more: such a path is
// not left for its silence.
type Silence struct {
	last  time.Duration
	paths []quiet
}

type quiet struct {
	silent time.Duration // how long it has given no sign
	seen   time.Duration // how long ago it last gave one; large if never
	lost   uint64        // packets at the last sign
	good   time.Duration // how long ago it last lost one, and was alive after it
}

const (
	// SilenceLook is how often paths are looked at while slices are under way.
	SilenceLook = 5 * time.Millisecond
	// A path is quiet after silencePoke: TCP sends an unanswered tail again after 10 ms, and a
	// queue of 20 ms shows in Answer.
	silencePoke = 15 * time.Millisecond
	// mostSilence is what a healthy path may take where round trips are short. (An
	// acknowledgement that is delayed, by 40 ms, is none that is owed.)
	mostSilence = 30 * time.Millisecond
	// lossless is after which time a lost packet was an accident.
	lossless = 10 * time.Second
)

// Step looks at the paths: those to poke, and those to leave, as bits.
func (s *Silence) Step(now time.Duration, signs []Sign) (poke, leave uint64) {
	took := min(now-s.last, 2*SilenceLook)
	if s.paths == nil {
		s.paths = make([]quiet, len(signs))
		for i := range s.paths {
			s.paths[i] = quiet{seen: time.Hour, good: time.Hour}
		}
	}
	s.last = now
	suspect := false
	for i, sign := range signs {
		q := &s.paths[i]
		q.seen += took
		q.good += took
		if sign.Alive {
			if q.seen = 0; sign.Lost > q.lost {
				q.good = 0
			}
			q.lost = sign.Lost
		}
		if !sign.Up || !sign.Waiting || sign.Alive {
			q.silent = 0
			continue
		}
		if q.silent += took; q.silent >= silencePoke {
			suspect = true
		}
	}
	if !suspect {
		return 0, 0
	}
	for i, sign := range signs {
		q := &s.paths[i]
		switch {
		case !sign.Up:
		case !sign.Waiting:
			if q.seen >= silencePoke {
				poke |= 1 << i // as a witness
			}
		case q.silent < silencePoke:
		case !sign.Asked:
			poke |= 1 << i
		case q.good >= lossless && q.silent >= max(mostSilence, 2*sign.Answer) && s.witness(i, q.silent-silencePoke):
			leave |= 1 << i
			q.silent = 0
		}
	}
	return poke, leave
}

// witness reports whether another path gave a sign within a time.
func (s *Silence) witness(i int, within time.Duration) bool {
	for j := range s.paths {
		if j != i && s.paths[j].seen < within {
			return true
		}
	}
	return false
}
