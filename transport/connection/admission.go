package connection

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// DefaultConns is how many connections a rail serves, if its configuration does not
// say; a quarter of what it serves may come from one peer. They are four of each of a thousand
// peers, and 80 MB if all are taken.
const DefaultConns = 4096

// An Admission decides which connections are served: so many in all, and so many
// from one peer, that strangers cannot keep others out. A connection that comes when
// there is no room replaces one that is idle, of the same peer if that has its share, of
// any otherwise:
//
//	first those that have never shown a good key, then those that have,
//	and of each the one that has been idle longest
//
// A connection with something under way is never ended for another. Where all are like
// that, the newcomer is refused. An initiator whose idle connection was ended makes
// another when it has something to send.
//
// Connections count from the moment that they are accepted: one that does not even
// greet is idle, and the first to go. The methods may be called from any goroutine.
type Admission struct {
	cfg AdmissionConfig

	mu     sync.Mutex
	guests map[Guest]string // where from
	peers  map[string]int   // guests of each
	lines  Sparse           // about those refused and ended

	failures Sparse // lines about those that could not be accepted
}

// AdmissionConfig is what an Admission goes by. All but Max, PerPeer and Fixed are required.
type AdmissionConfig struct {
	Rail    string // for the log
	Max     int    // default DefaultConns
	PerPeer int    // default a quarter of Max
	Fixed   bool   // there are no options that set Max and PerPeer
	Logger  *slog.Logger
}

// A Guest is a connection as an Admission sees it. It is compared with others: use a pointer.
type Guest interface {
	// Standing is how it stands now. It is asked while somebody else is admitted, and must
	// not call the Admission.
	Standing() Standing
	// Evict ends it, for a reason, and does not wait for that: it is called by Admit of
	// another. By then it is not counted any more.
	Evict(why error)
}

// A Standing says who is to make room first.
type Standing struct {
	Busy  bool      // something of it is under way
	Known bool      // it has shown a good key
	Idle  time.Time // since when it is not Busy
}

// before says that s makes room before o.
func (s *Standing) before(o *Standing) bool {
	if s.Known != o.Known {
		return !s.Known
	}
	return s.Idle.Before(o.Idle)
}

// NewAdmission admits nobody yet.
func NewAdmission(cfg AdmissionConfig) *Admission {
	cfg.Max = cmp.Or(cfg.Max, DefaultConns)
	cfg.PerPeer = cmp.Or(cfg.PerPeer, max(cfg.Max/4, 1))
	cfg.fit()
	return &Admission{cfg: cfg, guests: make(map[Guest]string), peers: make(map[string]int)}
}

var errMakeRoom = errors.New("it was idle, and made room for another connection")

// Admit counts a connection from a peer until Leave, or says why it is refused: a *Full. It
// may evict another.
func (a *Admission) Admit(g Guest, peer string) error {
	a.mu.Lock()
	var err error
	var out Guest
	switch {
	case a.peers[peer] >= a.cfg.PerPeer:
		if out = a.idlest(peer, true); out == nil {
			err = &Full{Limit: a.cfg.PerPeer, OneHost: true, Fixed: a.cfg.Fixed}
		}
	case len(a.guests) >= a.cfg.Max:
		if out = a.idlest(peer, false); out == nil {
			err = &Full{Limit: a.cfg.Max, Fixed: a.cfg.Fixed}
		}
	}
	if out != nil {
		a.leave(out)
	}
	if err == nil {
		a.guests[g] = peer
		a.peers[peer]++
	}
	a.mu.Unlock()
	if out != nil {
		out.Evict(errMakeRoom)
	}
	if err == nil && out == nil {
		return nil
	}
	if held, ok := a.lines.Line(time.Now()); ok {
		what := "an idle one was ended"
		if !a.cfg.Fixed {
			what += fmt.Sprintf(" (options %s and %s raise the limits)", OptionMax, OptionPerPeer)
		}
		if err != nil {
			what = "refused: " + err.Error()
		}
		a.cfg.Logger.Warn("transport: no room for a connection: "+what,
			"rail", a.cfg.Rail, "peer", peer, "limit", a.cfg.Max, "per_peer", a.cfg.PerPeer, "since_last_line", held+1)
	}
	return err
}

// idlest is the guest that makes room first, of a peer or of all. The caller holds a.mu.
func (a *Admission) idlest(peer string, own bool) (first Guest) {
	var least Standing
	for g, from := range a.guests {
		if own && from != peer {
			continue
		}
		if s := g.Standing(); !s.Busy && (first == nil || s.before(&least)) {
			first, least = g, s
		}
	}
	return first
}

// Leave ends the count of a connection. One that was evicted may leave again.
func (a *Admission) Leave(g Guest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leave(g)
}

func (a *Admission) leave(g Guest) {
	peer, ok := a.guests[g]
	if !ok {
		return
	}
	delete(a.guests, g)
	if a.peers[peer]--; a.peers[peer] == 0 {
		delete(a.peers, peer)
	}
}
