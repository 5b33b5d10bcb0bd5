package matrix

// A schedule says what is done next. It is a pure machine: it is told what happened, by Step,
// and has no processes and no clock. One thing is done at a time.
//
// Pairs come server by server, clients in the order of the file. A server is started for a pair
// and stopped after it, or, if it is shared, when its last pair is over. One that does not come
// up fails all pairs that it still has: each further try would wait as long. One that dies under
// a client fails that pair, and is started again for the next. A server that is somebody else's is
// awaited before each pair, and one that is not there fails all pairs that it still has, too.
type schedule struct {
	clients int    // each server's pairs are so many in a row
	shared  []bool // by server: one process for all its pairs
	runs    []bool // by server: a command; else it is somebody else's
	state   []pairState
	at      int // the pair that is under way
	up      bool
	ended   bool // interrupted: nothing more is begun
}

// A pairState is how far a pair is.
type pairState int

const (
	pending pairState = iota
	skipped           // done by an earlier run
	done
	failed
	interrupted
)

// An event is what happened.
type event int

const (
	begin         event = iota
	serverReady         // after startServer or awaitServer
	serverFailed        // after startServer: it did not come up, and is gone; after awaitServer: it is not there
	clientDone          // after runClient: it ended with 0
	clientFailed        // after runClient: by itself, by its deadline, or with its server
	serverLost          // after runClient: the same, and the server has ended
	serverGone          // after runClient: not begun, as the server has ended since the last pair
	serverStopped       // after stopServer
	interrupt           // after any of them, in its place: what was asked for was given up
)

// An action is what is to be done next, of the pair that at says.
type action int

const (
	startServer action = iota
	awaitServer        // somebody else's
	runClient
	stopServer
	finish
)

// server is the server of a pair.
func (s *schedule) server(pair int) int { return pair / s.clients }

// Step takes what happened and says what is next.
func (s *schedule) Step(e event) action {
	switch e {
	case serverReady:
		s.up = s.runs[s.server(s.at)]
		return runClient
	case serverFailed:
		for p := s.at; p < len(s.state) && s.server(p) == s.server(s.at); p++ {
			if s.state[p] == pending {
				s.state[p] = failed
			}
		}
	case clientDone:
		s.state[s.at] = done
	case clientFailed:
		s.state[s.at] = failed
	case serverLost:
		s.state[s.at], s.up = failed, false
	case serverGone, serverStopped:
		s.up = false
	case interrupt:
		s.ended = true
		if s.state[s.at] == pending {
			s.state[s.at] = interrupted
		}
	}
	return s.next()
}

// next goes to the pair that is to be run, and says what that takes.
func (s *schedule) next() action {
	to := s.at
	for to < len(s.state) && s.state[to] != pending {
		to++
	}
	over := s.ended || to == len(s.state)
	if s.up && (over || s.server(to) != s.server(s.at) || to != s.at && !s.shared[s.server(s.at)]) {
		return stopServer
	}
	if over {
		return finish
	}
	s.at = to
	switch {
	case s.up:
		return runClient
	case !s.runs[s.server(to)]:
		return awaitServer
	}
	return startServer
}
