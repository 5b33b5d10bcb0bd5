package transport

import (
	"sync"
	"sync/atomic"
)

// OpStats counts one direction of a rail, by the initiator.
type OpStats struct {
	Bytes  int64 // completed
	Slices int64 // completed
}

// RailStats is what one rail has done for its engine's batches so far. Posted
// slices are Write.Slices + Read.Slices + Errors + those in flight.
type RailStats struct {
	Name       string
	Addr       string
	Write      OpStats
	Read       OpStats
	Immediates int64 // sent and acknowledged; also in Write.Slices
	Posted     int64 // slices given to the rail
	Errors     int64 // slices that completed with an error
	Retries    int64 // slices queued again, here or on another rail
	Dials      int64 // attempts to connect
	DialErrors int64
	Conns      int64 // connections open now
	InFlight   int64 // bytes queued and posted now
	ImmIn      int64 // immediates delivered to this engine over this rail
	ImmRepeats int64 // immediates that came again and were dropped
	Paths      int   // to peers, of open targets
	Up         int   // of them connected
	Downs      int64 // times that a path lost its connection or was given up
	Resent     int64 // bytes of slices that had been posted and were queued again
	Rate       int64 // bytes/s that its paths were last seen to deliver; 0 before
	Strikes    int64 // batches with wrong bytes that it carried a part of, see Trail
	Rests      int64 // times that a path was put to rest for that
	Resting    int   // paths that rest now
	// Congestion are connections, made and served, by the algorithm of their congestion control,
	// and Changes how often one was given another; of a rail that is [Congested].
	Congestion map[string]int
	Changes    int64
}

// An account is the running count of one rail.
type account struct {
	write, read                 opAccount
	imms, post, errors, retries atomic.Int64
	dials, dialErrors, conns    atomic.Int64
	immIn, immRepeats           atomic.Int64
	resent, downs               atomic.Int64
	strikes, rests              atomic.Int64
	broken                      sync.Once // says in the log that the rail is
}

type opAccount struct{ bytes, slices atomic.Int64 }

func (a *opAccount) stats() OpStats { return OpStats{Bytes: a.bytes.Load(), Slices: a.slices.Load()} }

func (a *account) posted(n int) { a.post.Add(int64(n)) }
func (a *account) failed(n int) { a.errors.Add(int64(n)) }

func (a *account) retried(bytes int64) {
	a.retries.Add(1)
	a.resent.Add(bytes)
}

func (a *account) dialed(err error) {
	a.dials.Add(1)
	if err != nil {
		a.dialErrors.Add(1)
	}
}

func (a *account) completed(run []*Slice) {
	var n, bytes [2]int64
	for _, s := range run {
		n[s.Op]++
		bytes[s.Op] += int64(len(s.Local))
		if s.HasImm && !s.Imm.Asks() && !s.Imm.Part() {
			a.imms.Add(1)
		}
	}
	for op, acct := range [2]*opAccount{Write: &a.write, Read: &a.read} {
		if n[op] > 0 {
			acct.slices.Add(n[op])
			acct.bytes.Add(bytes[op])
		}
	}
}

// Rails returns the accounting of each rail, in the order of Config.Rails.
func (e *Engine) Rails() []RailStats {
	stats := make([]RailStats, len(e.cfg.Rails))
	for i, r := range e.cfg.Rails {
		a := &e.accts[i]
		stats[i] = RailStats{
			Name: r.Name(), Addr: r.Addr(),
			Write: a.write.stats(), Read: a.read.stats(), Immediates: a.imms.Load(),
			Posted: a.post.Load(), Errors: a.errors.Load(), Retries: a.retries.Load(),
			Dials: a.dials.Load(), DialErrors: a.dialErrors.Load(), Conns: a.conns.Load(),
			ImmIn: a.immIn.Load(), ImmRepeats: a.immRepeats.Load(),
			Downs: a.downs.Load(), Resent: a.resent.Load(),
			Strikes: a.strikes.Load(), Rests: a.rests.Load(),
		}
		if c, ok := r.(Congested); ok {
			stats[i].Congestion, stats[i].Changes = c.Congestion()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.cfg.Clock.Now()
	for _, g := range e.peers {
		for _, p := range g.paths {
			c, s := p.candidate(now), &stats[p.rail]
			s.InFlight += c.Inflight
			if x := p.express.Load(); x != nil {
				s.InFlight += x.inflight.Load()
			}
			s.Rate += int64(c.Rate)
			s.Paths++
			if p.up.Load() {
				s.Up++
			}
			if c.Resting {
				s.Resting++
			}
		}
	}
	return stats
}
