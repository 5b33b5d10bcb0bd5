package enginetest

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// A Setup is what a scheduler is made for.
type Setup struct {
	Seed          uint64
	Rand          *rand.Rand // for what else may differ between runs
	Pool          *kvcache.Pool
	MaxModelLen   int
	MaxNumSeqs    int  // sequences with blocks at a time, for a scheduler that has such a bound
	PrefixCaching bool // the pool keeps prefixes, for a scheduler that asks for them
	Blocking      bool // requests of source Blocking come too
}

// A Subject is a scheduler under test.
type Subject struct {
	Scheduler engine.Scheduler
	// Inspect, if not nil, looks at the scheduler's own state after a Step: what is wrong
	// with it, or nil. now and notBefore are those of the Step.
	Inspect func(now, notBefore time.Duration) error
}

// A Tally says what the runs met.
type Tally struct {
	Steps, Preemptions, PrefixHits int
}

// TestScheduler runs random load through schedulers with small pools: prompts of
// every source, with LoRA adapters and without, kept blocks, cancellations, receives that fail, launches that are
// held back, sequences that are suspended. Every request ends exactly once, with exactly
// its tokens in order, which are a function of its prompt alone; a step computes what is
// not computed yet, in blocks that are the sequence's and nobody else's;
// no block is lost; and the scheduler never stands still.
func TestScheduler(t *testing.T, subject func(*testing.T, Setup) Subject) (sum Tally) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		p := newPlayground(t, seed, subject)
		p.play()
		sum.Preemptions += int(p.s.Load().Preemptions)
		sum.PrefixHits += int(p.pool.Stats().PrefixHits)
		sum.Steps += p.steps
	}
	return sum
}

const vocab = 1000

// A playground drives one scheduler in virtual time.
type playground struct {
	t       *testing.T
	setup   Setup
	rng     *rand.Rand
	s       engine.Scheduler
	inspect func(now, notBefore time.Duration) error
	pool    *kvcache.Pool

	now    time.Duration
	events timeline
	n      int
	gate   time.Duration
	steps  int
	reqs   map[uint64]*expectation
	live   int
}

// An expectation is what must come of a request.
type expectation struct {
	engine.Request
	answer []kvcache.Token // all output tokens
	// When its prompt was first launched, and computed; see Sequence.
	launched, computed time.Duration
	next               int  // position of the next output
	have               int  // tokens whose KV is there
	begun              bool // its prompt was launched, perhaps at 0
	ended, cancelled   bool
	suspended          bool
}

type moment struct {
	at time.Duration
	n  int // order among equals
	do func() []engine.Event
}

type timeline []moment

func (l timeline) Len() int { return len(l) }
func (l timeline) Less(i, j int) bool {
	return l[i].at < l[j].at || l[i].at == l[j].at && l[i].n < l[j].n
}
func (l timeline) Swap(i, j int) { l[i], l[j] = l[j], l[i] }
func (l *timeline) Push(x any)   { *l = append(*l, x.(moment)) }
func (l *timeline) Pop() any {
	x := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return x
}

func newPlayground(t *testing.T, seed uint64, subject func(*testing.T, Setup) Subject) *playground {
	rng := rand.New(rand.NewPCG(seed, 1))
	caching := seed%2 == 0
	pool := kvcache.NewPool(6+rng.IntN(20), 1+rng.IntN(5), caching)
	p := &playground{t: t, rng: rng, pool: pool, reqs: map[uint64]*expectation{}}
	p.setup = Setup{Seed: seed, Rand: rng, Pool: pool, MaxModelLen: 40, MaxNumSeqs: 1 + rng.IntN(6), PrefixCaching: caching, Blocking: seed/2%2 == 0}
	u := subject(t, p.setup)
	p.s, p.inspect = u.Scheduler, u.Inspect
	return p
}

func (p *playground) random(limit time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(limit)))
}

func (p *playground) at(at time.Duration, do func() []engine.Event) {
	p.n++
	heap.Push(&p.events, moment{max(at, p.now), p.n, do})
}

func (p *playground) failf(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("seed %d at %v: %s", p.setup.Seed, p.now, fmt.Sprintf(format, args...))
}

// play brings the load and runs until nothing is left to happen.
func (p *playground) play() {
	stems := [][]kvcache.Token{p.prompt(24), p.prompt(24), p.prompt(24)}
	var at time.Duration
	for id := uint64(1); id <= 60; id++ {
		at += p.random(3 * time.Millisecond)
		prompt := slices.Concat(stems[p.rng.IntN(3)][:p.rng.IntN(20)], p.prompt(1+p.rng.IntN(8)))
		r := engine.Request{ID: id, Prompt: prompt, MaxTokens: 1 + p.rng.IntN(12), Ready: at + p.random(5*time.Millisecond)}
		switch p.rng.IntN(10) {
		case 0, 1, 2:
			r.KV = engine.Await
			r.Reserve = p.rng.IntN(r.MaxTokens + 1)
		case 3:
			if p.setup.Blocking {
				r.KV = engine.Blocking
			}
		case 4, 5:
			r.Keep = true
		}
		r.AtOnce = p.rng.IntN(3) == 0
		r.Adapter = [...]string{"", "", "a", "b", "c"}[p.rng.IntN(5)]
		p.at(at, func() []engine.Event { return p.arrive(r) })
		if p.rng.IntN(8) == 0 {
			p.at(at+p.random(60*time.Millisecond), func() []engine.Event { return []engine.Event{p.cancel(id)} })
		}
		if p.rng.IntN(6) == 0 {
			p.at(at+p.random(60*time.Millisecond), func() []engine.Event { return []engine.Event{engine.Suspend{ID: id}} })
		}
		if p.rng.IntN(20) == 0 { // perhaps before that, or in between
			p.at(at+p.random(80*time.Millisecond), func() []engine.Event { return []engine.Event{p.resume(id)} })
		}
	}
	// One more that comes when all is over, and is not ready yet: nothing else wakes the scheduler.
	p.at(at+time.Hour, func() []engine.Event {
		return p.arrive(engine.Request{ID: 61, Prompt: p.prompt(5), MaxTokens: 2, Ready: p.now + time.Millisecond})
	})
	for p.events.Len() > 0 {
		m := heap.Pop(&p.events).(moment)
		p.now = m.at
		events := m.do()
		for p.events.Len() > 0 && p.events[0].at == p.now && p.rng.IntN(2) == 0 {
			events = append(events, heap.Pop(&p.events).(moment).do()...)
		}
		p.step(events)
	}
	if p.live > 0 || p.pool.Used() > 0 || p.s.Current() != nil {
		p.failf("stands still with %d requests, %d blocks, step %v", p.live, p.pool.Used(), p.s.Current())
	}
	if l := p.s.Load(); l.Running != 0 || l.Waiting != 0 || l.WaitingTokens != 0 {
		p.failf("load at the end: %+v", l)
	}
}

func (p *playground) prompt(n int) []kvcache.Token {
	ts := make([]kvcache.Token, n)
	for i := range ts {
		ts[i] = p.rng.Uint32N(vocab)
	}
	return ts
}

func (p *playground) arrive(r engine.Request) []engine.Event {
	e := &expectation{Request: r}
	alone := engine.NewSequence(r)
	for range r.MaxTokens {
		t := alone.NextToken(vocab)
		alone.Append(t)
		e.answer = append(e.answer, t)
	}
	p.reqs[r.ID] = e
	p.live++
	return []engine.Event{engine.Add{Request: r}}
}

func (p *playground) cancel(id uint64) engine.Event {
	if e := p.reqs[id]; e != nil {
		e.cancelled = true
		p.end(e)
	}
	return engine.Cancel{ID: id}
}

func (p *playground) resume(id uint64) engine.Event {
	if e := p.reqs[id]; e != nil {
		e.suspended = false
	}
	return engine.Resume{ID: id}
}

// suspend has a sequence that stopped go on, or end, in a while.
func (p *playground) suspend(q *engine.Sequence) {
	e := p.reqs[q.ID]
	switch {
	case e.ended || e.suspended:
		p.failf("request %d is suspended: ended is %v, suspended before %v", e.ID, e.ended, e.suspended)
	case q.Held != q.Len()-1 || len(q.Table.Refs())*p.pool.BlockTokens() < q.Held:
		p.failf("request %d is suspended with the KV of %d of %d tokens in %d blocks", e.ID, q.Held, q.Len(), len(q.Table.Refs()))
	}
	e.suspended = true
	for _, w := range p.works() {
		if w.Seq == q {
			p.failf("request %d is suspended in a step", e.ID)
		}
	}
	ends := p.rng.IntN(4) == 0
	p.at(p.now+p.random(20*time.Millisecond), func() []engine.Event {
		if ends {
			return []engine.Event{p.cancel(e.ID)}
		}
		return []engine.Event{p.resume(e.ID)}
	})
}

// works are those of the step under way.
func (p *playground) works() []engine.Work {
	if step := p.s.Current(); step != nil {
		return step.Works
	}
	return nil
}

func (p *playground) end(e *expectation) {
	if e != nil && !e.ended {
		e.ended = true
		p.live--
	}
}

func (p *playground) step(events []engine.Event) {
	p.steps++
	rd := p.s.Step(p.now, p.gate, events...)
	for _, f := range rd.Refused {
		p.end(p.reqs[f.ID])
	}
	if rd.Launch != nil {
		for _, w := range rd.Launch.Works {
			if e := p.reqs[w.Seq.ID]; w.Prompt && !e.begun {
				e.begun, e.launched = true, rd.Launch.At
			}
		}
	}
	for _, o := range rd.Outputs {
		p.output(o)
	}
	for _, q := range rd.Allocated {
		p.fetch(q)
	}
	for _, c := range rd.Copies {
		p.copy(c)
	}
	for _, q := range rd.Suspended {
		p.suspend(q)
	}
	if rd.Launch != nil {
		p.launch(rd.Launch)
	}
	if rd.Wake != 0 {
		if rd.Wake <= p.now {
			p.failf("wake at %v", rd.Wake)
		}
		p.at(rd.Wake, func() []engine.Event { return nil })
	}
	if p.inspect == nil {
		return
	}
	if err := p.inspect(p.now, p.gate); err != nil {
		p.failf("%v", err)
	}
}

func (p *playground) output(o engine.Output) {
	e := p.reqs[o.Seq.ID]
	switch {
	case e.ended:
		p.failf("request %d: token %d after its end", e.ID, o.Position)
	case o.Position != e.next:
		p.failf("request %d: token %d, want %d", e.ID, o.Position, e.next)
	case o.Token != e.answer[o.Position]:
		p.failf("request %d: token %d is %d, alone it is %d", e.ID, o.Position, o.Token, e.answer[o.Position])
	case o.Last != (o.Position == e.MaxTokens-1):
		p.failf("request %d: token %d of %d: last is %v", e.ID, o.Position, e.MaxTokens, o.Last)
	}
	if o.Seq.Launched != e.launched || o.Seq.Computed != e.computed {
		p.failf("request %d: launched %v, computed %v, want %v and %v", e.ID, o.Seq.Launched, o.Seq.Computed, e.launched, e.computed)
	}
	if c := o.Seq.Cached(); c%p.pool.BlockTokens() != 0 || c > 0 && !p.setup.PrefixCaching {
		p.failf("request %d: %d tokens were cached, a block has %d", e.ID, c, p.pool.BlockTokens())
	}
	e.next++
	if o.Last {
		p.end(e)
		if e.Keep {
			kept := slices.Clone(o.Seq.Table.Refs())
			if len(kept)*p.pool.BlockTokens() < len(e.Prompt) {
				p.failf("request %d was to keep its blocks, and has %v", e.ID, kept)
			}
			p.at(p.now+p.random(20*time.Millisecond), func() []engine.Event {
				for _, r := range kept {
					if !e.cancelled && !p.pool.Valid(r) {
						p.failf("request %d was to keep %v, which is not held", e.ID, r)
					}
				}
				return []engine.Event{engine.Free{ID: e.ID}}
			})
		}
	}
}

// copy ends a copy after a while.
func (p *playground) copy(c engine.Copy) {
	if c.Blocks < 1 || c.Since > p.now || p.now-c.Since > engine.MaxLag {
		p.failf("copy %+v", c)
	}
	if c.Way == engine.ToGPU && (p.reqs[c.Seq] == nil || len(c.Refs) != c.Blocks) {
		p.failf("copy %+v", c)
	}
	p.at(p.now+p.random(8*time.Millisecond), func() []engine.Event {
		for _, r := range c.Refs {
			if !p.pool.Valid(r) {
				p.failf("blocks are copied into %v, which is not held", r)
			}
		}
		return []engine.Event{engine.Copied{ID: c.ID, At: p.now}}
	})
}

// fetch has the KV of a pending sequence arrive.
func (p *playground) fetch(q *engine.Sequence) {
	e := p.reqs[q.ID]
	if room := len(q.Table.Refs()) * p.pool.BlockTokens(); room < len(e.Prompt)+e.Reserve {
		p.failf("request %d has blocks for %d tokens, and reserves %d beyond its prompt of %d", e.ID, room, e.Reserve, len(e.Prompt))
	}
	given := e.answer[:p.rng.IntN(min(e.Reserve+1, e.MaxTokens)+1)]
	p.at(p.now+p.random(10*time.Millisecond), func() []engine.Event {
		if e.ended {
			return nil
		}
		// If none is given, the last token of the prompt goes through the model once more.
		e.next, e.have = len(given), len(e.Prompt)+len(given)-1
		if len(given) == e.MaxTokens {
			p.end(e)
		}
		return []engine.Event{engine.Landed{ID: e.ID, At: p.now, Given: given}}
	})
}

func (p *playground) launch(s *engine.Step) {
	if s.At > p.now || p.now-s.At > engine.MaxLag {
		p.failf("step dated %v", s.At)
	}
	if p.now < p.gate {
		p.failf("step launched before %v", p.gate)
	}
	if s != p.s.Current() {
		p.failf("launched %p, under way %p", s, p.s.Current())
	}
	tokens, seen := 0, map[uint64]bool{}
	type holder struct {
		id      uint64
		written bool
	}
	holders := map[kvcache.Ref]holder{}
	for _, w := range s.Works {
		e, q := p.reqs[w.Seq.ID], w.Seq
		if seen[q.ID] {
			p.failf("request %d is in the step twice", q.ID)
		}
		seen[q.ID] = true
		tokens += w.N
		if e.suspended {
			p.failf("request %d is in a step, and suspended", q.ID)
		}
		if e.ended && !e.Keep {
			p.failf("request %d is in a step after its end", q.ID)
		}
		// From where its KV ends; or again, after a preemption, from where the prefix cache's does.
		if w.N < 1 || w.From != e.have && w.From != q.Cached() || w.From+w.N > q.Len() || w.Sample != (w.From+w.N == q.Len()) {
			p.failf("work %+v of a sequence with %d of %d tokens computed", w, e.have, q.Len())
		}
		if room := len(q.Table.Refs()) * p.pool.BlockTokens(); room < w.From+w.N {
			p.failf("request %d computes up to token %d in blocks for %d", q.ID, w.From+w.N, room)
		}
		for i, r := range q.Table.Refs() {
			if !p.pool.Valid(r) {
				p.failf("request %d computes in %v, which is not held", q.ID, r)
			}
			written := (i+1)*p.pool.BlockTokens() > w.From && i*p.pool.BlockTokens() < w.From+w.N
			if o, shared := holders[r]; shared && (written || o.written || !p.setup.PrefixCaching) {
				p.failf("requests %d and %d compute in %v", o.id, q.ID, r)
			}
			holders[r] = holder{q.ID, written}
		}
		if (s.Kind == engine.Receive) != (q.KV == engine.Blocking && w.Prompt) || s.Kind == engine.Receive && w.From > 0 {
			p.failf("%v step with request %d of source %d from token %d", s.Kind, q.ID, q.KV, w.From)
		}
	}
	if tokens != s.Tokens {
		p.failf("step of %d tokens, says %d", tokens, s.Tokens)
	}
	end := s.At + p.random(6*time.Millisecond)
	p.at(end+p.random(time.Millisecond), func() []engine.Event {
		ev := engine.Done{At: min(end, p.now)}
		for _, w := range s.Works {
			if s.Kind == engine.Receive && p.rng.IntN(5) == 0 {
				ev.Failed = append(ev.Failed, w.Seq.ID)
				p.end(p.reqs[w.Seq.ID])
			}
		}
		ev.Tokens = generate(s, ev.Failed, vocab)
		for _, w := range s.Works {
			e := p.reqs[w.Seq.ID]
			e.have = w.From + w.N
			if w.Prompt && w.Sample && e.computed == 0 {
				e.computed = ev.At
			}
		}
		if p.rng.IntN(10) == 0 {
			p.gate = p.now + p.random(5*time.Millisecond)
			p.at(p.gate, func() []engine.Event { return nil })
		}
		if p.rng.IntN(100) == 0 { // its token has not left yet
			return []engine.Event{ev, p.cancel(s.Works[0].Seq.ID)}
		}
		return []engine.Event{ev}
	})
}

// generate is what the model draws in a step.
func generate(step *engine.Step, failed []uint64, vocab int) (out []kvcache.Token) {
	for _, k := range step.Works {
		if k.Sample && !slices.Contains(failed, k.Seq.ID) {
			out = append(out, k.Seq.NextToken(vocab))
		}
	}
	return out
}
