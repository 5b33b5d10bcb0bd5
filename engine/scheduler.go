package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"kvferry/config"
	"kvferry/kvcache"
)

// A Policy says which prompts and decodes share a step.
type Policy uint8

const (
	PrefillFirst Policy = iota
	Chunked
)

// MaxLag is how far back a launch, the end of a step or a part of a hand-off may be
// dated: to the moment it became possible or was due. A driver wakes a fraction of a millisecond late, and on a machine with a
// busy neighbour some milliseconds now and then; dating the step back keeps the
// schedule absolute, so lateness never adds up. At 2 ms, 1024/q2 fell behind by 7 ms in
// a burst, which was enough for v0 to take another course. Beyond it something else
// held the machine up, and the step starts when it starts. In virtual time nothing is
// late.
const MaxLag = 5 * time.Millisecond

// Config of a Scheduler. All fields but OutputDelay and PrefixCaching are needed.
type Config struct {
	Policy           Policy
	Pool             *kvcache.Pool
	MaxModelLen      int // prompt and output together
	MaxNumSeqs       int
	MaxBatchedTokens int
	ChunkTokens      int
	PrefixCaching    bool
	OutputDelay      time.Duration // see Costs.OutputDelayMS
}

// ConfigOf takes the limits and the output delay from a profile.
func ConfigOf(p *Profile, policy Policy, pool *kvcache.Pool) Config {
	return Config{
		Policy: policy, Pool: pool, MaxModelLen: p.MaxModelLen, MaxNumSeqs: p.MaxNumSeqs,
		MaxBatchedTokens: p.MaxBatchedTokens, ChunkTokens: p.ChunkTokens, OutputDelay: duration(p.Costs.OutputDelayMS),
	}
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	var bad config.Faults
	if c.Pool == nil {
		bad.Add("Pool", nil, "give the blocks of the KV cache")
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"MaxModelLen", c.MaxModelLen}, {"MaxNumSeqs", c.MaxNumSeqs}, {"MaxBatchedTokens", c.MaxBatchedTokens}, {"ChunkTokens", c.ChunkTokens}} {
		if f.v < 1 {
			bad.Add(f.name, f.v, "use 1 or more")
		}
	}
	if c.Policy == PrefillFirst && c.MaxBatchedTokens < c.MaxModelLen {
		bad.Add("MaxBatchedTokens", c.MaxBatchedTokens, "use %d or more, the longest prompt", c.MaxModelLen)
	}
	return bad.Err("engine.Config")
}

// Why a request can never be served here; Refusal.Err wraps one of them.
var (
	ErrEmptyPrompt = errors.New("prompt is empty")
	ErrTooLong     = errors.New("prompt and max_tokens exceed the model's length")
	ErrPoolSize    = errors.New("prompt and max_tokens exceed the KV pool")
	ErrDuplicate   = errors.New("request id is in use")
)

// A Scheduler forms the steps of one engine. See the package comment.
type Scheduler struct {
	cfg  Config
	seqs map[uint64]*Sequence

	future  []*Sequence // not ready yet, by Ready
	waiting []*Sequence // first come, first served
	pending []*Sequence
	running []*Sequence // in order of admission

	step    *Step // under way; it is spare, whose slices are used again
	spare   Step
	ended   time.Duration // when the last step ended
	starved bool          // something waits for blocks or for room in the batch
	relief  time.Duration // when an event last gave a starved scheduler some
	release []*Sequence   // cancelled while the step under way computes them

	out     []Output  // of the last step, leaving when the next is launched
	delayed []delayed // leaving at their time, none before one that stands before it

	preemptions uint64
	ready       Ready
}

type delayed struct {
	at time.Duration
	Output
}

// NewScheduler returns a scheduler with nothing to do.
func NewScheduler(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg, seqs: make(map[uint64]*Sequence)}, nil
}

// Step applies events in order, then launches the next step if none is under way
// and now is not before notBefore, and says what leaves. now never goes back.
func (s *Scheduler) Step(now, notBefore time.Duration, events ...Event) *Ready {
	s.ready = Ready{Outputs: s.ready.Outputs[:0], Allocated: s.ready.Allocated[:0], Refused: s.ready.Refused[:0]}
	for _, ev := range events {
		switch ev := ev.(type) {
		case Add:
			s.add(ev.Request)
		case Cancel:
			s.cancel(ev.ID)
			s.relieve(now)
		case Done:
			s.done(ev)
		case Landed:
			s.landed(ev)
		case Free:
			if q := s.seqs[ev.ID]; q != nil && q.where == kept {
				s.end(q)
				s.relieve(now)
			}
		default:
			panic(fmt.Sprintf("engine: unknown event %T", ev))
		}
	}
	for len(s.future) > 0 && s.future[0].Ready <= now {
		q := s.future[0]
		s.future = s.future[1:]
		q.where, q.runnable = inWaiting, q.Ready
		s.waiting = append(s.waiting, q)
	}
	s.admitAwaiting()
	if s.step == nil && now >= notBefore {
		s.launch(now, notBefore)
	}
	s.flush(now, notBefore)
	s.ready.Wake = s.wake()
	return &s.ready
}

// relieve remembers that blocks became free, if anything waits for them: a step
// that this makes possible was not possible before.
func (s *Scheduler) relieve(now time.Duration) {
	if s.starved {
		s.relief = now
	}
}

func (s *Scheduler) wake() time.Duration {
	var at time.Duration
	if len(s.future) > 0 {
		at = s.future[0].Ready
	}
	if len(s.delayed) > 0 && (at == 0 || s.delayed[0].at < at) {
		at = s.delayed[0].at
	}
	return at
}

// Current is the step under way, or nil.
func (s *Scheduler) Current() *Step { return s.step }

// Sequence returns the sequence with that ID, or nil. A sequence is forgotten
// when it has ended and its blocks are free.
func (s *Scheduler) Sequence(id uint64) *Sequence { return s.seqs[id] }

// Load is what a placement policy wants to know.
type Load struct {
	Running, Waiting int
	WaitingTokens    int // prompt tokens not computed yet
	Preemptions      uint64
}

// Load returns the state after the last Step.
func (s *Scheduler) Load() Load {
	l := Load{Running: len(s.running), Waiting: len(s.waiting) + len(s.future) + len(s.pending), Preemptions: s.preemptions}
	if s.step != nil {
		for _, w := range s.step.Works {
			if w.Prompt && w.Seq.where == inWaiting { // in the batch, though in the queue until it is done
				l.Running++
				l.Waiting--
			}
		}
	}
	for _, list := range [...][]*Sequence{s.waiting, s.future} {
		for _, q := range list {
			l.WaitingTokens += len(q.tokens) - q.computed
		}
	}
	return l
}

func (s *Scheduler) add(r Request) {
	if err := s.admissible(r); err != nil {
		s.ready.Refused = append(s.ready.Refused, Refusal{ID: r.ID, Err: err})
		return
	}
	// Room for the first output tokens, or the first of them copies the prompt.
	q := &Sequence{Request: r, tokens: append(make([]kvcache.Token, 0, len(r.Prompt)+min(r.MaxTokens, 256)), r.Prompt...)}
	for _, t := range r.Prompt {
		q.state = fold(q.state, t)
	}
	if s.cfg.PrefixCaching {
		if q.hashes = r.Prefix; q.hashes == nil {
			q.hashes = kvcache.PrefixHashes(r.Prompt, s.cfg.Pool.BlockTokens())
		}
	}
	s.seqs[r.ID] = q
	i := len(s.future)
	for i > 0 && s.future[i-1].Ready > r.Ready {
		i--
	}
	s.future = slices.Insert(s.future, i, q)
}

func (s *Scheduler) admissible(r Request) error {
	room := s.cfg.Pool.Total() * s.cfg.Pool.BlockTokens()
	switch {
	case len(r.Prompt) == 0:
		return ErrEmptyPrompt
	case r.MaxTokens < 1:
		return fmt.Errorf("max_tokens is %d: must be at least 1", r.MaxTokens)
	case r.MaxTokens > s.cfg.MaxModelLen-len(r.Prompt):
		return fmt.Errorf("%w: %d + %d tokens, at most %d", ErrTooLong, len(r.Prompt), r.MaxTokens, s.cfg.MaxModelLen)
	case r.MaxTokens > room-len(r.Prompt):
		return fmt.Errorf("%w: %d + %d tokens, at most %d", ErrPoolSize, len(r.Prompt), r.MaxTokens, room)
	case s.seqs[r.ID] != nil:
		return fmt.Errorf("%w: %d", ErrDuplicate, r.ID)
	}
	return nil
}

// admitAwaiting gives blocks to sequences whose KV comes from elsewhere, in
// order, until the pool or the batch is full. It needs no step.
func (s *Scheduler) admitAwaiting() {
	for len(s.waiting) > 0 {
		q := s.waiting[0]
		if q.KV != Await || len(s.running)+len(s.pending) >= s.cfg.MaxNumSeqs || !s.place(q) {
			return
		}
		s.waiting = s.waiting[1:]
		q.where = inPending
		s.pending = append(s.pending, q)
		s.ready.Allocated = append(s.ready.Allocated, q)
	}
}

func (s *Scheduler) landed(ev Landed) {
	q := s.seqs[ev.ID]
	if q == nil || q.where != inPending {
		return // cancelled meanwhile
	}
	s.pending = remove(s.pending, q)
	q.computed = len(q.tokens)
	s.commit(q)
	for _, t := range ev.Given {
		q.append(t)
	}
	if len(ev.Given) == 0 {
		// The model's last prompt token goes through it once more to draw the first
		// output token; its KV is there already.
		q.computed--
	}
	q.runnable = ev.At
	if q.Output() >= q.MaxTokens {
		s.end(q)
		return
	}
	q.where = inRunning
	s.running = append(s.running, q)
}

func (s *Scheduler) cancel(id uint64) {
	s.drop(id)
	q := s.seqs[id]
	if q == nil {
		return
	}
	switch q.where {
	case inFuture:
		s.future = remove(s.future, q)
	case inWaiting:
		s.waiting = remove(s.waiting, q)
	case inPending:
		s.pending = remove(s.pending, q)
	case inRunning:
		s.running = remove(s.running, q)
	}
	if s.step != nil && slices.ContainsFunc(s.step.Works, func(w Work) bool { return w.Seq == q }) {
		// The executor may be writing its blocks.
		q.where = finished
		delete(s.seqs, id)
		s.release = append(s.release, q)
		return
	}
	s.end(q)
}

// drop forgets outputs that have not left.
func (s *Scheduler) drop(id uint64) {
	s.out = slices.DeleteFunc(s.out, func(o Output) bool { return o.Seq.ID == id })
	s.delayed = slices.DeleteFunc(s.delayed, func(o delayed) bool { return o.Seq.ID == id })
}

// end releases a sequence's blocks and forgets it.
func (s *Scheduler) end(q *Sequence) {
	s.free(q)
	delete(s.seqs, q.ID)
}

func (s *Scheduler) free(q *Sequence) {
	if err := q.Table.Release(s.cfg.Pool); err != nil {
		// Only the scheduler releases blocks, so this is a bug here.
		panic(fmt.Sprintf("engine: request %d: %v", q.ID, err))
	}
}

func remove(list []*Sequence, q *Sequence) []*Sequence {
	if i := slices.Index(list, q); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
