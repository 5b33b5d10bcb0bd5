package transport

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport/selection"
)

// A peer is another engine as its rails' addresses show it: the paths there, and the
// slices that no path has taken yet. Targets that are reached over the same rails
// share a peer, and so its connections.
//
//	Submit ──► lanes ────Choose────► path's queue ──► endpoint
//	             ▲                       │ connection lost
//	             └───── evacuate ◄───────┘ writes only once the target has fenced it
//
// Affinity binds a slice to a path late, when that has room: what is under way on a
// path is little, and a path that turns out slow or dead has few slices to give back.
// The other selections bind at once.
type peer struct {
	e     *Engine
	id    string
	paths []*path
	stop  chan struct{} // ends watch
	busy  chan struct{} // wakes it

	drowsy atomic.Bool // watch looks seldom

	refs int         // open targets; guarded by e.mu
	idle *time.Timer // guarded by e.mu

	turn   atomic.Int64 // of RoundRobin
	queued atomic.Int64 // slices in lanes

	mu    sync.Mutex
	lanes []*lane
	next  int // lane to begin with
}

// A lane is a queue of slices whose memory is equally far from each path's rails.
type lane struct {
	ranks []uint8 // of each path
	queue []*Slice
}

// assign gives slices to paths, now or when there is room. All are of one batch, or
// come from one path.
func (g *peer) assign(run []*Slice) {
	switch {
	case len(run) == 0:
	case g.hasten(run):
	case len(g.paths) == 1:
		g.paths[0].take(run)
		g.paths[0].enqueue(run)
	case g.e.cfg.Select == Affinity:
		g.mu.Lock()
		var gone []*Slice
		var l *lane
		var last *Slice
		for _, s := range run {
			if s.batch.aborted.Load() {
				gone = append(gone, s)
				continue
			}
			if last == nil || !s.alike(last) {
				l, last = g.lane(s), s
			}
			l.queue = append(l.queue, s)
			g.queued.Add(1)
		}
		g.mu.Unlock()
		drop(gone)
		g.dispatch()
	default:
		runs := make([][]*Slice, len(g.paths))
		var usable []*path
		for i, s := range run {
			if i == 0 || !s.alike(run[i-1]) {
				usable = g.usable(s)
			}
			p := g.eager(s, usable, i, len(run))
			p.take(run[i : i+1])
			runs[p.index] = append(runs[p.index], s)
		}
		for i, run := range runs {
			g.paths[i].enqueue(run)
		}
	}
}

// drop takes slices of aborted batches off them.
func drop(run []*Slice) {
	for _, s := range run {
		s.batch.sliceDone(1)
	}
}

// lane finds the queue for a slice. The caller holds g.mu.
func (g *peer) lane(s *Slice) *lane {
	ranks := make([]uint8, len(g.paths))
	for i, p := range g.paths {
		ranks[i] = s.rank(p)
	}
	for _, l := range g.lanes {
		if slices.Equal(l.ranks, ranks) {
			return l
		}
	}
	l := &lane{ranks: ranks}
	g.lanes = append(g.lanes, l)
	return l
}

// rank is how far a path's rails are from a slice's memory, here and there.
func (s *Slice) rank(p *path) uint8 {
	var here uint8
	if s.seg != nil {
		here = s.seg.ranks[p.rail]
	}
	return max(here, s.target.ranks[p.addr()])
}

// joins says whether a path goes from a segment here to one there.
func (g *peer) joins(s *Segment, t *Target) bool {
	return slices.ContainsFunc(g.paths, func(p *path) bool {
		return s.ranks[p.rail] != selection.Unusable && t.ranks[p.addr()] != selection.Unusable
	})
}

// alike says that two slices have the same ranks: their memory is that of the same
// segments, here and there.
func (s *Slice) alike(o *Slice) bool { return s.seg == o.seg && s.target == o.target }

// candidates are the paths as selection sees them now.
func (g *peer) candidates() []selection.Path {
	now := g.e.cfg.Clock.Now()
	cs := make([]selection.Path, len(g.paths))
	for i, p := range g.paths {
		cs[i] = p.candidate(now)
	}
	return cs
}

// dispatch gives waiting slices to paths that have room.
func (g *peer) dispatch() {
	if g.queued.Load() == 0 {
		return
	}
	g.mu.Lock()
	runs := make([][]*Slice, len(g.paths))
	cs := g.candidates()
	g.next++
	for k := range g.lanes {
		l := g.lanes[(g.next+k)%len(g.lanes)]
		sizes := func(i int) (int64, bool) {
			if i >= len(l.queue) {
				return 0, false
			}
			return int64(len(l.queue[i].Local)), true
		}
		for {
			i, at, ok := selection.Choose(cs, l.ranks, sizes)
			if !ok {
				break
			}
			n := 1
			if b := l.queue[0].batch; at == 0 && b.whole(l.queue) && selection.Whole(cs, l.ranks, i, b.bytes) {
				n = len(b.slices)
			}
			taken := l.queue[at : at+n]
			bytes := size(taken)
			runs[i] = append(runs[i], taken...)
			copy(l.queue[n:at+n], l.queue[:at]) // those before them move up
			clear(l.queue[:n])
			l.queue = l.queue[n:]
			g.queued.Add(-int64(n))
			cs[i].Inflight += bytes
			g.paths[i].inflight.Add(bytes)
		}
		if len(l.queue) == 0 {
			l.queue = nil
		}
	}
	g.mu.Unlock()
	for i, run := range runs {
		g.paths[i].enqueue(run)
	}
}

// usable are the paths that a slice may be bound to at once: those that are up, do not stand by and do
// not have to be avoided, or all if none is up; of rails that must not be used for the peer's memory only if there are no
// others.
func (g *peer) usable(s *Slice) []*path {
	usable := slices.DeleteFunc(slices.Clone(g.paths), func(p *path) bool { return s.rank(p) == selection.Unusable })
	if len(usable) == 0 {
		usable = slices.DeleteFunc(slices.Clone(g.paths), func(p *path) bool { return s.seg != nil && s.seg.ranks[p.rail] == selection.Unusable })
	}
	cs := g.candidates() // one look: what is avoided is so because another of these is up
	up := slices.DeleteFunc(slices.Clone(usable), func(p *path) bool { return !cs[p.index].Up })
	if len(up) == 0 {
		return usable
	}
	avoid := selection.Avoided(cs, func(i int) uint8 { return s.rank(g.paths[i]) })
	return slices.DeleteFunc(up, func(p *path) bool { return avoid&(1<<p.index) != 0 })
}

// eager chooses the path for the i-th of n slices at once.
func (g *peer) eager(s *Slice, up []*path, i, n int) *path {
	switch g.e.cfg.Select {
	case Static:
		return up[i*len(up)/n]
	case RoundRobin:
		return up[int((g.turn.Add(1)-1)%int64(len(up)))]
	}
	return slices.MinFunc(up, func(a, b *path) int { return int(s.rank(a)) - int(s.rank(b)) })
}

// signal queues slices without bytes, past others if need be.
func (g *peer) signal(run []*Slice) {
	g.soonest(run[0]).past(run).enqueue(run)
}

// soonest is the path that has the least before a slice.
func (g *peer) soonest(s *Slice) *path {
	if len(g.paths) == 1 {
		return g.paths[0]
	}
	if g.e.cfg.Select == Single {
		return g.eager(s, g.usable(s), 0, 1)
	}
	cs := g.candidates()
	rate := selection.Rates(cs)
	avoid := selection.Avoided(cs, func(i int) uint8 { return s.rank(g.paths[i]) })
	best := -1
	for i := range cs {
		if cs[i].Up && avoid&(1<<i) == 0 && s.rank(g.paths[i]) != selection.Unusable && (best < 0 || selection.Finish(&cs[i], rate(i), 0) < selection.Finish(&cs[best], rate(best), 0)) {
			best = i
		}
	}
	return g.paths[max(best, 0)]
}

// otherUp says whether a path but p is connected.
func (g *peer) otherUp(p *path) bool {
	return slices.ContainsFunc(g.paths, func(q *path) bool { return q != p && q.up.Load() })
}

// evacuate moves what a path without a connection has queued to paths that have one.
// Writes that were posted on a connection that was lost stay until the target says
// that it is ended: bytes on their way could otherwise land after the batch is done
// and its memory is used for something else.
func (g *peer) evacuate(p *path) {
	if !g.otherUp(p) {
		return
	}
	p.mu.Lock()
	if p.conn != nil {
		p.mu.Unlock()
		return
	}
	var free, stuck []*Slice
	for _, s := range p.queue {
		if s.stale == nil {
			free = append(free, s)
		} else {
			stuck = append(stuck, s)
		}
	}
	p.queue = stuck
	dismount(free) // they may go over several paths
	var at *connection
	var t *Target
	if len(stuck) > 0 && p.fencing == nil {
		at, t = stuck[0].stale, stuck[0].target
		p.fencing = at
	}
	p.mu.Unlock()
	p.inflight.Add(-size(free))
	g.assign(free)
	if at != nil {
		g.e.fence(t, SecretsOf(at.ep), func(err error) { g.fenced(p, at, t, err) })
	}
}

// fenced takes the target's answer about a lost connection. Without one the next
// attempt to connect asks again.
func (g *peer) fenced(p *path, at *connection, t *Target, err error) {
	p.mu.Lock()
	p.fencing = nil
	over := err == nil || errors.Is(err, ErrBadKey) // it holds the memory no more: its slices will hear so
	if over {
		for _, s := range p.queue {
			if s.stale == at && (err == nil || s.target == t) {
				s.stale = nil
			}
		}
	}
	p.mu.Unlock()
	if over {
		g.evacuate(p)
	}
}

// connected is called when a path is up: it takes what waits.
func (g *peer) connected(p *path) {
	for _, q := range g.all() {
		if q != p && !q.up.Load() {
			g.evacuate(q)
		}
	}
	g.dispatch()
}

// purge takes an aborted batch's slices out of the queues.
func (g *peer) purge(b *Batch) {
	n := 0
	g.mu.Lock() // place looks whether the batch is aborted, and queues, within it
	for _, l := range g.lanes {
		had := len(l.queue)
		l.queue = slices.DeleteFunc(l.queue, func(s *Slice) bool { return s.batch == b })
		n += had - len(l.queue)
	}
	g.queued.Add(int64(-n))
	g.mu.Unlock()
	if n > 0 {
		b.sliceDone(n)
	}
	for _, p := range g.all() {
		p.purge(b)
	}
}

// shut closes the paths of a peer that nothing has open.
func (g *peer) shut() {
	close(g.stop)
	for _, p := range g.paths {
		p.shut()
	}
}
