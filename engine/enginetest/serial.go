package enginetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// A Serial is the smallest scheduler that keeps the contract: a step has one sequence, and
// a sequence has blocks for all of its tokens before it starts, so that none is ever
// preempted. It has no prefix cache. It is for tests, and for reading: what is here every
// scheduler must do.
type Serial struct {
	pool        *kvcache.Pool
	maxModelLen int

	seqs    map[uint64]*serial
	waiting []*serial // without blocks, by Ready
	going   []*serial // with blocks, in the order in which they got them
	step    *engine.Step
	inStep  *serial
	ready   engine.Ready
}

// A serial is what the scheduler knows of a sequence beside what all may see.
type serial struct {
	engine.Sequence
	pending bool // its KV is on its way, or it is suspended
	suspend bool // after the step under way
	kept    bool // it has ended, and its blocks wait for Free
	over    bool // it was cancelled in a step
}

// NewSerial returns a scheduler with nothing to do.
func NewSerial(pool *kvcache.Pool, maxModelLen int) *Serial {
	return &Serial{pool: pool, maxModelLen: maxModelLen, seqs: make(map[uint64]*serial)}
}

// Step implements engine.Scheduler.
func (s *Serial) Step(now, notBefore time.Duration, events ...engine.Event) *engine.Ready {
	s.ready = engine.Ready{}
	for _, ev := range events {
		switch ev := ev.(type) {
		case engine.Add:
			s.add(ev.Request)
		case engine.Cancel:
			s.cancel(ev.ID)
		case engine.Done:
			s.done(ev)
		case engine.Landed:
			if q := s.seqs[ev.ID]; q != nil && q.pending { // else it was cancelled meanwhile
				s.landed(q, ev.Given)
			}
		case engine.Suspend:
			if q := s.seqs[ev.ID]; q != nil {
				q.suspend = true
				s.suspend(q)
			}
		case engine.Resume:
			if q := s.seqs[ev.ID]; q != nil {
				q.suspend = false
				q.pending = q.pending && q.Held == 0 // its KV is on its way
				s.unsuspended(q.ID)
			}
		case engine.Free:
			if q := s.seqs[ev.ID]; q != nil && q.kept {
				s.end(q)
			}
		}
	}
	for len(s.waiting) > 0 && s.admit(now) {
		s.waiting = s.waiting[1:]
	}
	if s.step == nil && now >= notBefore {
		s.launch(now)
	}
	if len(s.waiting) > 0 && s.waiting[0].Ready > now {
		s.ready.Wake = s.waiting[0].Ready
	}
	return &s.ready
}

// Current implements engine.Scheduler.
func (s *Serial) Current() *engine.Step { return s.step }

// Load implements engine.Scheduler.
func (s *Serial) Load() (l engine.Load) {
	for _, q := range s.going {
		if q.pending {
			l.Waiting++
			continue
		}
		l.Running++
		if q.Output() == 0 {
			l.WaitingTokens += len(q.Prompt) - q.Held
		}
	}
	for _, q := range s.waiting {
		l.Waiting++
		l.WaitingTokens += len(q.Prompt)
	}
	return l
}

func (s *Serial) add(r engine.Request) {
	err := r.Validate(s.pool, s.maxModelLen)
	if err == nil && s.seqs[r.ID] != nil {
		err = fmt.Errorf("%w: %d", engine.ErrDuplicate, r.ID)
	}
	if err != nil {
		s.ready.Refused = append(s.ready.Refused, engine.Refusal{ID: r.ID, Err: err})
		return
	}
	q := &serial{Sequence: *engine.NewSequence(r)}
	s.seqs[r.ID] = q
	at, _ := slices.BinarySearchFunc(s.waiting, r.Ready+1, func(o *serial, at time.Duration) int { return cmp.Compare(o.Ready, at) })
	s.waiting = slices.Insert(s.waiting, at, q)
}

// admit gives the first that waits its blocks, if it is time and there are enough.
func (s *Serial) admit(now time.Duration) bool {
	q := s.waiting[0]
	if q.Ready > now || !q.Table.Grow(s.pool, len(q.Prompt)+q.MaxTokens) {
		return false
	}
	s.going = append(s.going, q)
	if q.pending = q.KV == engine.Await; q.pending {
		s.ready.Allocated = append(s.ready.Allocated, &q.Sequence)
	}
	return true
}

// launch starts a step with the first sequence that can go on.
func (s *Serial) launch(now time.Duration) {
	i := slices.IndexFunc(s.going, func(q *serial) bool { return !q.pending })
	if i < 0 {
		return
	}
	q := s.going[i]
	w := engine.Work{Seq: &q.Sequence, From: q.Held, N: q.Len() - q.Held, Prompt: q.Output() == 0 && q.KV != engine.Await, Sample: true}
	s.inStep, s.step = q, &engine.Step{Kind: engine.Decode, At: now, Tokens: w.N, Works: []engine.Work{w}}
	if w.Prompt {
		q.Launch(now)
		s.step.Kind = engine.Prefill
		if q.KV == engine.Blocking {
			s.step.Kind = engine.Receive
		}
	}
	s.ready.Launch = s.step
}

func (s *Serial) done(ev engine.Done) {
	q := s.inStep
	s.step, s.inStep = nil, nil
	switch {
	case q.over, slices.Contains(ev.Failed, q.ID):
		s.end(q)
		return
	case q.Output() == 0 && q.KV != engine.Await:
		q.Computed = ev.At
	}
	q.Held = q.Len()
	q.Append(ev.Tokens[0])
	last := q.Output() == q.MaxTokens
	s.ready.Outputs = append(s.ready.Outputs, engine.Output{Seq: &q.Sequence, Token: ev.Tokens[0], Position: q.Output() - 1, Last: last})
	switch {
	case last && q.Keep:
		q.kept = true
		s.going = slices.DeleteFunc(s.going, func(o *serial) bool { return o == q })
	case last:
		s.end(q)
	default:
		s.suspend(q)
	}
}

// suspend has a sequence stop that was asked to, if it generates and no step has it.
func (s *Serial) suspend(q *serial) {
	if q.suspend && q != s.inStep && !q.kept && q.Held > 0 && q.Held == q.Len()-1 {
		q.suspend, q.pending = false, true
		s.ready.Suspended = append(s.ready.Suspended, &q.Sequence)
	}
}

// landed goes on with a sequence whose KV is there.
func (s *Serial) landed(q *serial, given []kvcache.Token) {
	q.pending = false
	for _, t := range given {
		q.Append(t)
	}
	q.Held = q.Len() - 1 // if none is given, the prompt's last goes through the model again
	if q.Output() >= q.MaxTokens {
		s.end(q)
	}
}

// unsuspended does not say of a sequence that it is suspended.
func (s *Serial) unsuspended(id uint64) {
	s.ready.Suspended = slices.DeleteFunc(s.ready.Suspended, func(q *engine.Sequence) bool { return q.ID == id })
}

func (s *Serial) cancel(id uint64) {
	s.ready.Outputs = slices.DeleteFunc(s.ready.Outputs, func(o engine.Output) bool { return o.Seq.ID == id })
	s.unsuspended(id)
	q := s.seqs[id]
	switch {
	case q == nil:
	case q == s.inStep: // the executor may be writing its blocks
		q.over = true
		delete(s.seqs, id)
	default:
		s.end(q)
	}
}

// end releases a sequence's blocks and forgets it.
func (s *Serial) end(q *serial) {
	if s.seqs[q.ID] == q {
		delete(s.seqs, q.ID)
	}
	is := func(o *serial) bool { return o == q }
	s.waiting = slices.DeleteFunc(s.waiting, is)
	s.going = slices.DeleteFunc(s.going, is)
	if err := q.Table.Release(s.pool); err != nil {
		panic(fmt.Sprintf("enginetest: request %d: %v", q.ID, err))
	}
}
