package engine

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/kvcache"
)

// TestScheduler runs random load through schedulers with small pools: prompts of
// every source, kept blocks, cancellations, receives that fail, launches that are
// held back. Whatever the policy, every request ends exactly once, with exactly
// its tokens in order, which are a function of its prompt alone; no token waits longer
// than the output delay or a launch that is held back; no block is lost or held twice;
// and the scheduler never stands still.
func TestScheduler(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 40
	}
	var preempted, hits, steps int
	for seed := range seeds {
		p := newPlayground(t, seed)
		p.play()
		preempted += int(p.s.Load().Preemptions)
		hits += int(p.pool.Stats().PrefixHits)
		steps += p.steps
	}
	t.Logf("%d steps, %d preemptions, %d tokens from the prefix cache", steps, preempted, hits)
	if preempted == 0 || hits == 0 {
		t.Errorf("the load does not exercise preemption (%d) and the prefix cache (%d)", preempted, hits)
	}
}

const vocab = 1000

// A playground drives one scheduler in virtual time.
type playground struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	cfg  Config
	s    *Scheduler
	pool *kvcache.Pool

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
	Request
	answer []kvcache.Token // all output tokens
	// When its prompt was first launched, and computed; see Sequence.
	launched, computed time.Duration
	next               int // position of the next output
	ended              bool
}

type moment struct {
	at time.Duration
	n  int // order among equals
	do func() []Event
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

func newPlayground(t *testing.T, seed uint64) *playground {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &playground{t: t, seed: seed, rng: rng, reqs: map[uint64]*expectation{}}
	p.pool = kvcache.NewPool(6+rng.IntN(20), 1+rng.IntN(5), seed%2 == 0)
	p.cfg = Config{
		Policy: Policy(seed / 2 % 2), Pool: p.pool, MaxModelLen: 40, MaxNumSeqs: 1 + rng.IntN(6), MaxBatchedTokens: 40 + rng.IntN(20),
		ChunkTokens: 1 + rng.IntN(16), PrefixCaching: seed%2 == 0, OutputDelay: p.random(4 * time.Millisecond),
	}
	s, err := NewScheduler(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.s = s
	return p
}

func (p *playground) random(limit time.Duration) time.Duration {
	return time.Duration(p.rng.Int64N(int64(limit)))
}

func (p *playground) at(at time.Duration, do func() []Event) {
	p.n++
	heap.Push(&p.events, moment{max(at, p.now), p.n, do})
}

func (p *playground) failf(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("seed %d at %v: %s", p.seed, p.now, fmt.Sprintf(format, args...))
}

// play brings the load and runs until nothing is left to happen.
func (p *playground) play() {
	stems := [][]kvcache.Token{p.prompt(24), p.prompt(24), p.prompt(24)}
	var at time.Duration
	for id := uint64(1); id <= 60; id++ {
		at += p.random(3 * time.Millisecond)
		prompt := slices.Concat(stems[p.rng.IntN(3)][:p.rng.IntN(20)], p.prompt(1+p.rng.IntN(8)))
		r := Request{ID: id, Prompt: prompt, MaxTokens: 1 + p.rng.IntN(12), Ready: at + p.random(5*time.Millisecond)}
		switch p.rng.IntN(10) {
		case 0, 1, 2:
			r.KV = Await
		case 3:
			if p.cfg.Policy == PrefillFirst {
				r.KV = Blocking
			}
		case 4, 5:
			r.Keep = true
		}
		r.AtOnce = p.rng.IntN(3) == 0
		p.at(at, func() []Event { return p.arrive(r) })
		if p.rng.IntN(8) == 0 {
			p.at(at+p.random(60*time.Millisecond), func() []Event {
				p.end(p.reqs[id])
				return []Event{Cancel{id}}
			})
		}
	}
	for p.events.Len() > 0 {
		m := heap.Pop(&p.events).(moment)
		p.now = m.at
		events := m.do()
		for p.events.Len() > 0 && p.events[0].at == p.now && p.rng.IntN(2) == 0 {
			events = append(events, heap.Pop(&p.events).(moment).do()...)
		}
		p.step(events)
	}
	if p.live > 0 || len(p.s.seqs) > 0 || len(p.s.release) > 0 || p.pool.Used() > 0 || p.s.Current() != nil {
		p.failf("stands still with %d requests, %d sequences, %d blocks, step %v", p.live, len(p.s.seqs), p.pool.Used(), p.s.Current())
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

func (p *playground) arrive(r Request) []Event {
	e := &expectation{Request: r}
	alone := &Sequence{Request: r}
	for _, t := range r.Prompt {
		alone.append(t)
	}
	for range r.MaxTokens {
		t := alone.NextToken(vocab)
		alone.append(t)
		e.answer = append(e.answer, t)
	}
	p.reqs[r.ID] = e
	p.live++
	return []Event{Add{r}}
}

func (p *playground) end(e *expectation) {
	if e != nil && !e.ended {
		e.ended = true
		p.live--
	}
}

func (p *playground) step(events []Event) {
	p.steps++
	rd := p.s.Step(p.now, p.gate, events...)
	for _, f := range rd.Refused {
		p.end(p.reqs[f.ID])
	}
	if rd.Launch != nil {
		for _, w := range rd.Launch.Works {
			if e := p.reqs[w.Seq.ID]; w.Prompt && e.launched == 0 {
				e.launched = rd.Launch.At
			}
		}
	}
	for _, o := range rd.Outputs {
		p.output(o)
	}
	for _, q := range rd.Allocated {
		p.fetch(q)
	}
	if rd.Launch != nil {
		p.launch(rd.Launch)
	}
	if rd.Wake != 0 {
		if rd.Wake <= p.now {
			p.failf("wake at %v", rd.Wake)
		}
		p.at(rd.Wake, func() []Event { return nil })
	}
	for _, o := range p.s.out {
		if o.Seq.AtOnce || p.s.Current() != nil || p.now >= p.gate {
			p.failf("request %d: token %d waits for a launch, at once: %v, gate %v", o.Seq.ID, o.Position, o.Seq.AtOnce, p.gate)
		}
	}
	for _, o := range p.s.delayed {
		if o.Seq.AtOnce || p.s.delayed[0].at <= p.now || o.at > p.now+p.cfg.OutputDelay {
			p.failf("request %d: token %d is delayed until %v, at once: %v", o.Seq.ID, o.Position, o.at, o.Seq.AtOnce)
		}
	}
	p.conserve()
}

func (p *playground) output(o Output) {
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
	if c := o.Seq.Cached(); c%p.pool.BlockTokens() != 0 || c > 0 && !p.cfg.PrefixCaching {
		p.failf("request %d: %d tokens were cached, a block has %d", e.ID, c, p.pool.BlockTokens())
	}
	e.next++
	if o.Last {
		p.end(e)
		if e.Keep {
			p.at(p.now+p.random(20*time.Millisecond), func() []Event { return []Event{Free{e.ID}} })
		}
	}
}

// fetch has the KV of a pending sequence arrive.
func (p *playground) fetch(q *Sequence) {
	e := p.reqs[q.ID]
	given := e.answer[:p.rng.IntN(2)]
	p.at(p.now+p.random(10*time.Millisecond), func() []Event {
		if e.ended {
			return nil
		}
		e.next = len(given)
		if len(given) == e.MaxTokens {
			p.end(e)
		}
		return []Event{Landed{ID: e.ID, At: p.now, Given: given}}
	})
}

func (p *playground) launch(s *Step) {
	if s.At > p.now || p.now-s.At > MaxLag {
		p.failf("step dated %v", s.At)
	}
	tokens, seen := 0, map[uint64]bool{}
	for _, w := range s.Works {
		if seen[w.Seq.ID] {
			p.failf("request %d is in the step twice", w.Seq.ID)
		}
		seen[w.Seq.ID] = true
		tokens += w.N
		if w.N < 1 || w.From != w.Seq.computed || w.From+w.N > len(w.Seq.tokens) || w.Sample != (w.From+w.N == len(w.Seq.tokens)) {
			p.failf("work %+v of a sequence with %d of %d tokens computed", w, w.Seq.computed, len(w.Seq.tokens))
		}
		if room := len(w.Seq.Table.Refs()) * p.pool.BlockTokens(); room < w.From+w.N {
			p.failf("request %d computes up to token %d in blocks for %d", w.Seq.ID, w.From+w.N, room)
		}
		if (s.Kind == Receive) != (w.Seq.KV == Blocking && w.Prompt) || s.Kind == Receive && w.From > 0 {
			p.failf("%v step with request %d of source %d from token %d", s.Kind, w.Seq.ID, w.Seq.KV, w.From)
		}
	}
	if tokens != s.Tokens || len(s.Works) > p.cfg.MaxNumSeqs {
		p.failf("step of %d sequences, %d tokens, says %d", len(s.Works), tokens, s.Tokens)
	}
	limit := p.cfg.MaxBatchedTokens
	if p.cfg.Policy == Chunked {
		limit = max(p.cfg.ChunkTokens, len(s.Works)) // decodes go in any case
	}
	if tokens > limit {
		p.failf("step of %d tokens, at most %d", tokens, limit)
	}
	end := s.At + p.random(6*time.Millisecond)
	p.at(end+p.random(time.Millisecond), func() []Event {
		ev := Done{At: min(end, p.now)}
		for _, w := range s.Works {
			if s.Kind == Receive && p.rng.IntN(5) == 0 {
				ev.Failed = append(ev.Failed, w.Seq.ID)
				p.end(p.reqs[w.Seq.ID])
			}
		}
		ev.Tokens = generate(s, ev.Failed, vocab)
		for _, w := range s.Works {
			if e := p.reqs[w.Seq.ID]; w.Prompt && w.Sample && e.computed == 0 {
				e.computed = ev.At
			}
		}
		if p.rng.IntN(10) == 0 {
			p.gate = p.now + p.random(5*time.Millisecond)
			p.at(p.gate, func() []Event { return nil })
		}
		return []Event{ev}
	})
}

// conserve checks that the pool's blocks are those of the sequences, and shared
// only through the prefix cache.
func (p *playground) conserve() {
	holders := map[kvcache.Ref]int{}
	count := func(q *Sequence) {
		for _, r := range q.Table.Refs() {
			holders[r]++
			if !p.pool.Valid(r) {
				p.failf("request %d holds %v, which is not held", q.ID, r)
			}
		}
	}
	for _, q := range p.s.seqs {
		count(q)
	}
	for _, q := range p.s.release {
		count(q)
	}
	if len(holders) != p.pool.Used() {
		p.failf("%d blocks used, sequences hold %d", p.pool.Used(), len(holders))
	}
	for r, n := range holders {
		if n > 1 && !p.cfg.PrefixCaching {
			p.failf("%v is held %d times", r, n)
		}
	}
	if n := len(p.s.running) + len(p.s.pending); n > p.cfg.MaxNumSeqs {
		p.failf("%d sequences are running or pending, at most %d", n, p.cfg.MaxNumSeqs)
	}
	for _, list := range [...][]*Sequence{p.s.future, p.s.waiting, p.s.pending, p.s.running} {
		for _, q := range list {
			if p.s.seqs[q.ID] != q {
				p.failf("request %d is listed and forgotten", q.ID)
			}
		}
	}
}
