package transport

import "kvferry/transport/account"

// What a rail has done, see package account.
type (
	RailStats = account.Stats
	OpStats   = account.OpStats
)

// tally counts slices that have completed.
func tally(a *account.Account, run []*Slice) {
	var n, bytes [2]int64
	for _, s := range run {
		n[s.Op]++
		bytes[s.Op] += int64(len(s.Local))
		if s.HasImm && !s.Imm.Asks() && !s.Imm.Part() {
			a.Imms.Add(1)
		}
	}
	for op, of := range [2]*account.Op{Write: &a.Write, Read: &a.Read} {
		if n[op] > 0 {
			of.Slices.Add(n[op])
			of.Bytes.Add(bytes[op])
		}
	}
}

// Rails returns the accounting of each rail, in the order of Config.Rails.
func (e *Engine) Rails() []RailStats {
	stats := make([]RailStats, len(e.cfg.Rails))
	for i, r := range e.cfg.Rails {
		stats[i] = e.accts[i].Stats(r.Name(), r.Addr())
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
