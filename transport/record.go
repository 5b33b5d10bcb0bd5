package transport

import (
	"fmt"
	"math/bits"
	"time"

	"kvferry/transport/selection"
)

// A recordKey is a path by its ends, which outlast it.
type recordKey struct {
	rail int // in Config.Rails
	addr string
}

// A Trail is the paths that carried the bytes of batches to and from one peer, for
// when it turns out whether those were right. The zero value is none. It keeps no
// memory of the batches alive, and may be used after the engine's Close, to no effect.
// It is a value: Add is for one goroutine, the others for any.
type Trail struct {
	peer  *peer
	paths uint64 // bits, by path.index
	ended time.Duration
	tag   string
}

// Trail is that of a batch which has ended; before that it may lack some.
func (b *Batch) Trail() Trail {
	if b.t == nil {
		return Trail{}
	}
	return Trail{b.t.peer, b.paths.Load(), b.Completed(), b.opt.Tag}
}

// Add takes in the trail of another batch with the same peer; of one with another peer
// it is an error of the caller's, and ignored.
func (t *Trail) Add(o Trail) {
	if t.peer == nil {
		*t = o
	} else if t.peer == o.peer {
		t.paths |= o.paths
		t.ended = max(t.ended, o.ended)
	}
}

// Blame says that the bytes turned out wrong, and how. Paths that carried some take a
// strike; one that has too many rests.
func (t Trail) Blame(err error) {
	type verdict struct {
		path    *path
		strikes int
		rest    time.Duration // 0 if it does not
	}
	var verdicts []verdict
	suspects := false
	t.each(func(_ *path, r *selection.Record, _ time.Duration) { suspects = suspects || r.Rest() > 0 })
	t.each(func(p *path, r *selection.Record, now time.Duration) {
		if suspects && r.Rest() == 0 {
			return
		}
		v := verdict{path: p}
		if r.Strike(now, t.ended) {
			v.rest = r.Rest()
		}
		v.strikes = r.Strikes()
		verdicts = append(verdicts, v)
	})
	for _, v := range verdicts {
		p := v.path
		p.acct.Strikes.Add(1)
		p.e.cfg.Logger.Warn("transport: bytes arrived wrong", "rail", p.name(), "peer", p.addr(), "batch", t.tag, "strikes", v.strikes, "err", err)
		if v.rest > 0 {
			p.acct.Rests.Add(1)
			p.rest(v.rest, fmt.Errorf("%d batches that it carried had wrong bytes, it rests for %v: %w", v.strikes, v.rest, err))
		}
	}
}

// Vouch says that the bytes turned out right. Many times in a row it clears the paths
// that carried them.
func (t Trail) Vouch() {
	alone := t.peer != nil && len(t.peer.paths) > 1 && bits.OnesCount64(t.paths) == 1
	t.each(func(_ *path, r *selection.Record, _ time.Duration) { r.Vouch(alone) })
}

// each calls f with the record of each path, and keeps those that are not clear.
func (t Trail) each(f func(*path, *selection.Record, time.Duration)) {
	if t.peer == nil {
		return
	}
	e := t.peer.e
	now := e.cfg.Clock.Now()
	e.recordsMu.Lock()
	defer e.recordsMu.Unlock()
	for set := t.paths; set != 0; set &= set - 1 {
		p := t.peer.paths[bits.TrailingZeros64(set)]
		key := recordKey{p.rail, p.addr()}
		r := e.records[key]
		if r == nil {
			r = &selection.Record{}
		}
		f(p, r, now)
		if r.Clear() {
			delete(e.records, key)
		} else {
			e.records[key] = r
		}
	}
	e.blamed.Store(int64(len(e.records)))
}

// trusted is what selection needs to know of a path's record.
func (p *path) trusted(now time.Duration) (resting bool, strikes int) {
	if p.e.blamed.Load() == 0 {
		return false, 0
	}
	p.e.recordsMu.Lock()
	defer p.e.recordsMu.Unlock()
	if r := p.e.records[recordKey{p.rail, p.addr()}]; r != nil {
		return r.Resting(now), r.Strikes()
	}
	return false, 0
}

// rest tells of a path's rest, and of its end.
func (p *path) rest(d time.Duration, why error) {
	p.e.spawn(func() {
		p.e.changed(p, p.e.cfg.Clock.Now(), PathResting, why)
		tm := time.NewTimer(d)
		defer tm.Stop()
		select {
		case <-tm.C:
			if p.up.Load() {
				p.e.changed(p, p.e.cfg.Clock.Now(), PathUp, nil)
			}
			p.peer.dispatch()
		case <-p.stop:
		case <-p.e.ctx.Done():
		}
	})
}
