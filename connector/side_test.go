package connector

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// A side is a node and everything around its core.
type side struct {
	x     *pair
	name  string
	core  *Core
	pool  *kvcache.Pool
	peer  *side
	legs  map[uint64]*leg
	asks  map[uint64]uint64 // transfer there -> our request
	sent  time.Duration     // messages to the peer keep their order
	pend  []Event
	armed time.Duration
}

// A leg is what the driver knows of a request on a side.
type leg struct {
	ends     int
	deadline time.Duration
	dropped  bool
	window   uint64        // open: its transfer
	lease    time.Duration // until then, of what is offered
	offered  []kvcache.Ref
	moves    map[*Move]bool // false: being stopped
	checks   map[*Check]bool
	passed   map[int]bool // parts checked and found well
	redone   bool         // its prompt was computed here after all
}

// submit brings a leg; of one that writes, the zero Remote has it come ahead.
func (s *side) submit(j *job, kind handoff.Leg, r Remote) {
	if j.cancelled || j.failed {
		return // the proxy has given up
	}
	n := j.max
	if kind == handoff.PrefillLeg {
		n = 1
	}
	s.legs[j.id] = &leg{deadline: max(j.deadline, s.x.w.now), moves: map[*Move]bool{}, checks: map[*Check]bool{}, passed: map[int]bool{}}
	s.take(Submit{ID: j.id, Leg: kind, Handoff: s.x.hand, Prompt: j.prompt, MaxTokens: n, Deadline: j.deadline, Remote: r, Ahead: s.x.hand.Moves(kind) && r.Node == "", Checks: s.x.checks()})
}

// take steps the core, now or together with what else happens at this moment.
func (s *side) take(ev Event) {
	s.pend = append(s.pend, ev)
	if len(s.pend) == 1 {
		s.x.w.at(s.x.w.now, s.step)
	}
}

func (s *side) step() {
	x := s.x
	if x.at != x.w.now {
		x.at, x.steps = x.w.now, 0
	}
	if x.steps++; x.steps > 5000 {
		x.failf("%s: 5000 steps in an instant", s.name)
	}
	events := s.pend
	s.pend = nil
	a := s.core.Step(x.w.now, events...)
	a.Perform(sideDriver{s})
	s.intact()
	if at := a.Wake; at > 0 && (s.armed <= x.w.now || at < s.armed) {
		s.armed = at
		x.w.at(max(at, x.w.now), func() {
			if s.armed == at {
				s.armed = 0
				s.step()
			}
		})
	}
}

// sideDriver is the side as its core sees it. Moves and checks outlive the step.
type sideDriver struct{ *side }

func (d sideDriver) Launch(step *engine.Step, layers, read bool) { d.launch(step, layers, read) }
func (d sideDriver) Copy(c engine.Copy)                          { d.copy(c) }
func (d sideDriver) Token(t Token)                               { d.token(t) }
func (d sideDriver) Failed(f *Failed)                            { d.failed(*f) }
func (d sideDriver) Ask(a Ask)                                   { d.ask(a) }
func (d sideDriver) Answer(a Answer)                             { d.reply(a) }
func (d sideDriver) Migrated(*Migrated)                          { d.x.failf("a request was to stay") }

func (d sideDriver) Halt(uint64)     { d.x.failf("a request was to stay") }
func (d sideDriver) Close(id uint64) { d.close(id) }

func (d sideDriver) Move(m *Move) {
	kept := *m
	d.move(&kept)
}

func (d sideDriver) Check(c *Check) {
	kept := *c
	kept.Refs = slices.Clone(c.Refs)
	d.check(&kept)
}

func (d sideDriver) Reserved(o *Offer) {
	x, id, r := d.x, o.ID, d.open(*o)
	x.w.at(x.soon(5*time.Millisecond), func() {
		j := x.jobs[id]
		j.to = r
		switch {
		case !j.ahead:
			d.peer.submit(j, handoff.PrefillLeg, r)
		case !j.cancelled && !j.failed:
			x.tally.Directed++
			d.peer.take(Direct{ID: id, Remote: r})
		}
	})
}

func (d sideDriver) Prefilled(p *Prefilled) {
	x := d.x
	d.ended(p.ID)
	if p.Offer == nil {
		return
	}
	r := d.open(*p.Offer)
	d.hold(p.ID)
	r.FirstToken = p.FirstToken
	j := x.jobs[p.ID]
	if j.forgotten {
		x.tally.Forgotten++
		return
	}
	x.w.at(x.soon(5*time.Millisecond), func() { d.peer.submit(j, handoff.DecodeLeg, r) })
}

func (d sideDriver) Finished(f *Finished) {
	d.ended(f.ID)
	if j := d.x.jobs[f.ID]; d.side == d.x.d && d.x.hand.FirstToken == handoff.DecodeLeg && j.got != j.max {
		d.x.failf("request %d finished with %d of %d tokens", f.ID, j.got, j.max)
	}
}

func (d sideDriver) Drop(id uint64) {
	l := d.legs[id]
	first := 0
	for c := range l.checks {
		if !c.Again { // whose blocks are held until it has ended
			first++
		}
	}
	if l.dropped || l.window != 0 || len(l.moves)+first > 0 {
		d.x.failf("%s: request %d dropped: %+v", d.name, id, l)
	}
	l.dropped = true
}

// intact: what can still be touched belongs to whom it did.
func (s *side) intact() {
	valid := func(id uint64, what string, refs ...kvcache.Ref) {
		for _, r := range refs {
			if !s.pool.Valid(r) {
				s.x.failf("%s: request %d: block %v was given back under %s", s.name, id, r, what)
			}
		}
	}
	for id, l := range s.legs {
		if l.window != 0 {
			valid(id, "an open window", l.offered...)
		}
		for m := range l.moves {
			for _, p := range m.Pairs {
				valid(id, "a move", p.Local)
			}
		}
		for c := range l.checks {
			valid(id, "a check", c.Refs...)
		}
	}
}

func (s *side) ended(id uint64) {
	l := s.legs[id]
	if l.ends++; l.ends > 1 {
		s.x.failf("%s: request %d ended %d times", s.name, id, l.ends)
	}
	// What is computed by then may still be on its way through the front end, behind requests.
	if slack := millis(50 * (s.x.prof.Costs.FrontEndInMS + s.x.prof.Costs.FrontEndOutMS)); s.x.w.now > l.deadline+slack {
		s.x.failf("%s: request %d ended at %v, its deadline was %v", s.name, id, s.x.w.now, l.deadline)
	}
}

func (s *side) failed(f Failed) {
	x, j := s.x, s.x.jobs[f.ID]
	s.ended(f.ID)
	if errors.Is(f.Err, ErrUndirected) {
		x.tally.Undirected++
		x.w.at(x.soon(3*time.Millisecond), func() {
			if j.ahead = false; j.to.Node != "" {
				s.submit(j, handoff.PrefillLeg, j.to)
			}
		})
		return
	}
	switch {
	case errors.Is(f.Err, ErrDeadline):
		x.tally.Deadlines++
		if !j.hasty {
			x.failf("%s: request %d hung until its deadline", s.name, f.ID)
		}
	case errors.Is(f.Err, ErrTransfer):
		x.tally.Broken++
	case errors.Is(f.Err, ErrChanged):
		x.tally.Changed++
	case errors.Is(f.Err, ErrContent):
		x.tally.Bad++
	case errors.Is(f.Err, engine.ErrPoolSize):
	default:
		x.failf("request %d: %v", f.ID, f.Err)
	}
	j.failed = true
	// The proxy ends the other leg.
	x.w.at(x.soon(3*time.Millisecond), func() { s.peer.take(Cancel{f.ID}) })
}

func (s *side) token(t Token) {
	x, j := s.x, s.x.jobs[t.ID]
	if j.answer == nil {
		j.answer = alone(x.t, x.prof, j.prompt, j.max)
	}
	if s.legs[t.ID].ends > 0 || t.Position != j.got || t.Token != j.answer[t.Position] {
		// A first token that comes from the other node may be overtaken.
		if !(x.hand.FirstToken == handoff.PrefillLeg && t.Position > 0 && t.Token == j.answer[t.Position]) {
			x.failf("%s: request %d: token %d is %d after %d; alone: %v", s.name, t.ID, t.Position, t.Token, j.got, j.answer)
		}
	}
	j.got++
}

// alone is what one node answers that computes everything itself.
func alone(t testing.TB, prof *engine.Profile, prompt []kvcache.Token, n int) (out []kvcache.Token) {
	cfg := batching.ConfigOf(prof, false, kvcache.NewPool(64, prof.KVGeometry.BlockTokens, false))
	s, err := batching.NewScheduler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	rd := s.Step(0, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: prompt, MaxTokens: n}})
	for rd.Launch != nil {
		tok := rd.Launch.Works[0].Seq.NextToken(prof.Vocab)
		out = append(out, tok)
		rd = s.Step(0, 0, engine.Done{Tokens: []kvcache.Token{tok}})
	}
	return out
}

func (s *side) launch(step *engine.Step, layers, read bool) {
	x := s.x
	var toks []kvcache.Token
	for _, w := range step.Works {
		l := s.legs[w.Seq.ID]
		if s == x.d {
			if w.Prompt {
				l.redone = true
			}
			parts := x.hand.Parts.Count(x.prof.KVGeometry.Layers)
			if !l.redone && len(l.passed) != parts {
				x.failf("request %d decodes with %d of %d parts checked", w.Seq.ID, len(l.passed), parts)
			}
		}
		if w.Sample {
			toks = append(toks, w.Seq.NextToken(x.prof.Vocab))
		}
	}
	d := time.Millisecond + time.Duration(x.rng.Int64N(int64(20*time.Millisecond)))
	if layers {
		n := x.prof.KVGeometry.Layers
		for i := range n {
			x.w.at(x.w.now+d*time.Duration(i+1)/time.Duration(n), func() { s.take(LayerDone{Layer: i, At: x.w.now}) })
		}
	}
	if read && x.rng.IntN(2) == 0 {
		x.w.at(x.w.now+time.Duration(x.rng.Int64N(int64(d))), func() { s.take(StepRead{}) })
	}
	x.w.at(x.w.now+d, func() { s.take(StepDone{At: x.w.now, Tokens: toks}) })
}

// copy ends a copy within the node after a while.
func (s *side) copy(c engine.Copy) {
	s.x.tally.Copies++
	s.x.w.at(s.x.soon(10*time.Millisecond), func() { s.take(Copied{ID: c.ID, At: s.x.w.now}) })
}

func (s *side) open(o Offer) Remote {
	l := s.legs[o.ID]
	l.window, l.offered = o.Transfer, slices.Clone(o.Blocks)
	r := Remote{Node: s.name, Transfer: o.Transfer, Tokens: o.Tokens}
	for i, b := range o.Blocks {
		r.Blocks = append(r.Blocks, kvcache.Entry{Index: o.First + i, Ref: b})
	}
	return r
}

// hold gives up a hold when its lease is over, if nobody has renewed or ended it.
func (s *side) hold(id uint64) {
	x, l := s.x, s.legs[id]
	until := x.w.now + x.hold
	l.lease = until
	x.w.at(until, func() {
		if l.window != 0 && l.lease == until {
			l.window, l.lease = 0, 0
			s.take(Lapsed{ID: id})
		}
	})
}

var errFault = errors.New("fault")

// move carries a part, if the window at the other end is still open when it gets
// there; then the blocks at both ends are whose they were.
func (s *side) move(m *Move) {
	x := s.x
	l := s.legs[m.ID]
	l.moves[m] = true
	posted := x.w.now
	x.w.at(x.soon(30*time.Millisecond), func() {
		if !l.moves[m] {
			return // cancelled by Close
		}
		delete(l.moves, m)
		ev := Moved{ID: m.ID, Part: m.Part, Posted: posted, At: x.w.now, Bytes: 1}
		far := s.peer.legs[m.ID]
		switch {
		case far == nil || far.window == 0:
			ev.Err, ev.Bytes = fmt.Errorf("%w: %w", ErrWithdrawn, errFault), 0
			x.tally.Refused++
		case x.chance(x.f.move):
			ev.Err, ev.Bytes = errFault, 0
		case m.Imm:
			arrived := Arrived{ID: m.ID, Part: m.Part, Token: m.Token, At: x.w.now}
			s.peer.take(arrived)
			if x.chance(x.f.repeat) {
				x.w.at(x.soon(20*time.Millisecond), func() { s.peer.take(arrived) })
			}
		}
		s.take(ev)
	})
}

func (s *side) check(c *Check) {
	x := s.x
	l := s.legs[c.ID]
	l.checks[c] = true
	x.w.at(x.soon(5*time.Millisecond), func() {
		delete(l.checks, c)
		ev := Checked{ID: c.ID, Part: c.Part, Blocks: len(c.Refs)}
		if c.Again {
			ev.Again, ev.Refs = true, c.Refs
		}
		if x.chance(x.f.check) {
			ev.Bad, ev.Err = 1, errFault
			if c.Again {
				ev.Err, ev.From = fmt.Errorf("%w: %w", ErrChanged, errFault), x.rng.IntN(len(c.Refs))
			}
		} else if !c.Again {
			l.passed[c.Part] = true
		}
		s.take(ev)
	})
}

func (s *side) close(id uint64) {
	l := s.legs[id]
	for m := range l.moves {
		l.moves[m] = false // stops, but may touch the blocks until it has
		s.x.w.at(s.x.soon(10*time.Millisecond), func() {
			delete(l.moves, m)
			s.take(Moved{ID: id, Part: m.Part, Posted: s.x.w.now, At: s.x.w.now, Err: errFault})
		})
	}
	had := l.window
	s.x.w.at(s.x.soon(10*time.Millisecond), func() {
		if l.window != had {
			return // it has lapsed meanwhile
		}
		l.window = 0
		s.take(Closed{ID: id})
	})
}

// later delivers a message to the peer, in order.
func (s *side) later(do func()) {
	s.sent = max(s.sent, s.x.soon(3*time.Millisecond))
	s.x.w.at(s.sent, do)
}

func (s *side) ask(ask Ask) {
	x := s.x
	if ask.Release {
		s.later(func() { s.peer.take(Release{ask.Transfer}) })
		return
	}
	s.asks[ask.Transfer] = ask.ID
	if x.chance(x.f.gone) {
		x.tally.Gone++
		s.later(func() { s.take(Gone{ID: ask.ID, Err: errFault}) })
		return
	}
	s.later(func() {
		for id, l := range s.peer.legs {
			if l.window == ask.Transfer {
				s.peer.hold(id)
			}
		}
		s.peer.take(Produce{ask.Transfer})
	})
}

func (s *side) reply(ans Answer) {
	id := s.peer.asks[ans.Transfer]
	if ans.Gone {
		s.x.tally.Gone++
	}
	s.later(func() {
		if ans.Gone {
			s.peer.take(Gone{ID: id, Err: ErrWithdrawn})
		} else {
			s.peer.take(Produced{ID: id, Tensor: ans.Tensor})
		}
	})
}
