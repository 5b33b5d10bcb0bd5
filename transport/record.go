package transport

import (
	"fmt"
	"math/bits"
	"time"
)

// A record says how far a path is to be trusted to deliver the bytes that it was given,
// by what the owners of batches found. It is a pure function of what it is told.
//
//	              strikesOut strikes within strikeSpan
//	trusted ─────────────────────────────────────────────► resting
//	   ▲                                                    │   ▲
//	   │                        the rest is over: tried again   │ one strike: rests
//	   │                                                    ▼   │ twice as long
//	   └──────────── goodRun batches found right ────────── on trial
//
// A path that rests is not chosen while another to its peer is usable. What is wrong
// need not be the path: it may be the memory at either end, or another path that
// carried a part of the same batch. So it takes several strikes. Of the paths that
// carried a part those take one that had a rest before, if any had, and otherwise all.
// Where all paths to a peer rest the one with the fewest strikes goes on, by itself:
// that tells a bad path from one that kept it company.
type record struct {
	strikes int             // since the record was clear
	recent  []time.Duration // of them the latest, within strikeSpan
	rest    time.Duration   // length of the last one; 0 if there was none
	until   time.Duration   // its end
	good    int             // batches found right since the last strike
	last    time.Duration   // strike
}

const (
	// strikesOut within strikeSpan are no accident: a bit flips in memory once in
	// days, and a path that spoils one batch in twenty has as many in seconds at a
	// few requests a second.
	strikesOut = 3
	strikeSpan = time.Minute
	// The first rest is about what a failed request takes to be placed again; the
	// longest keeps what is spoilt for good to a batch or two a minute, and has a
	// path that was mended back within one.
	firstRest = time.Second
	mostRest  = time.Minute
	// goodRun batches in a row clear a record: a path that spoils one in ten gets there
	// once in thirty times. A batch that it carried alone, where there are others, says
	// more of it, and counts as goodAlone.
	goodRun   = 32
	goodAlone = 4
	// longAgo is when strikes do not count any more although nobody said that
	// batches were right.
	longAgo = 10 * mostRest
)

// strike takes a batch that was wrong, and ended at a time. It reports whether the path
// rests from now on.
func (r *record) strike(now, ended time.Duration) bool {
	if r.strikes > 0 && now-r.last > longAgo {
		*r = record{}
	}
	r.strikes++
	r.good, r.last = 0, now
	for len(r.recent) > 0 && now-r.recent[0] > strikeSpan {
		r.recent = r.recent[1:]
	}
	r.recent = append(r.recent, now)
	r.recent = r.recent[max(0, len(r.recent)-strikesOut):]
	switch {
	case now < r.until, r.rest > 0 && ended < r.until:
		return false // it was on its way when the path was put to rest, or nothing else was usable
	case r.rest == 0 && len(r.recent) < strikesOut:
		return false
	}
	r.rest = min(max(2*r.rest, firstRest), mostRest)
	r.until = now + r.rest
	return true
}

// vouch takes a batch that was right, or one that counts as more.
func (r *record) vouch(n int) {
	if r.good += n; r.good >= goodRun {
		*r = record{}
	}
}

func (r *record) resting(now time.Duration) bool { return now < r.until }

// clear says that there is nothing to remember.
func (r *record) clear() bool { return r.strikes == 0 }

// A recordKey is a path by its ends, which outlast it.
type recordKey struct {
	rail int // in Config.Rails
	addr string
}

// A Trail is the paths that carried the bytes of batches to and from one peer, for
// when it turns out whether those were right. The zero value is none. It keeps no
// memory of the batches alive.
type Trail struct {
	peer  *peer
	paths uint64 // bits, by path.index
	ended time.Duration
	tag   string
}

// Trail is that of a batch which has ended.
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
	t.each(func(_ *path, r *record, _ time.Duration) { suspects = suspects || r.rest > 0 })
	t.each(func(p *path, r *record, now time.Duration) {
		if suspects && r.rest == 0 {
			return
		}
		v := verdict{path: p}
		if r.strike(now, t.ended) {
			v.rest = r.rest
		}
		v.strikes = r.strikes
		verdicts = append(verdicts, v)
	})
	for _, v := range verdicts {
		p := v.path
		p.acct.strikes.Add(1)
		p.e.cfg.Logger.Warn("transport: bytes arrived wrong", "rail", p.name(), "peer", p.addr(), "batch", t.tag, "strikes", v.strikes, "err", err)
		if v.rest > 0 {
			p.acct.rests.Add(1)
			p.rest(v.rest, fmt.Errorf("%d batches that it carried had wrong bytes, it rests for %v: %w", v.strikes, v.rest, err))
		}
	}
}

// Vouch says that the bytes turned out right. Many times in a row it clears the paths
// that carried them.
func (t Trail) Vouch() {
	n := 1
	if t.peer != nil && len(t.peer.paths) > 1 && bits.OnesCount64(t.paths) == 1 {
		n = goodAlone
	}
	t.each(func(_ *path, r *record, _ time.Duration) { r.vouch(n) })
}

// each calls f with the record of each path, and keeps those that are not clear.
func (t Trail) each(f func(*path, *record, time.Duration)) {
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
			r = &record{}
		}
		f(p, r, now)
		if r.clear() {
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
		return r.resting(now), r.strikes
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
