package batching

import (
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/kvcache"
)

// Config of a Scheduler. What may be 0 says so, or is PrefixCaching or below it.
type Config struct {
	Policy           Policy
	Pool             *kvcache.Pool
	MaxModelLen      int // prompt and output together
	MaxNumSeqs       int
	MaxBatchedTokens int // not of Chunked: tokens in a step, of prompts or with V1 in all
	ChunkTokens      int // of Chunked: tokens in a step; of SGLang: of prompts, the last one cut short, 0 for none cut
	PrefixCaching    bool
	Tiers            *kvcache.Tiers // with PrefixCaching, below the pool; nil for none
	OutputDelay      time.Duration  // see engine.Costs.OutputDelayMS
	LoRA             engine.LoRA

	LongPrefillTokens     int     // of V1: tokens of one prompt in a step that has others; 0 for no bound
	LongestPrefixFirst    bool    // of SGLang, with PrefixCaching
	Conservativeness      float64 // of SGLang
	PrefillDecodeInterval int     // of SGLang: decode steps after one with prompts
}

// ConfigOf takes the policy, the limits and the output delay from a profile; see PolicyOf.
func ConfigOf(p *engine.Profile, chunked bool, pool *kvcache.Pool) Config {
	c := Config{Policy: PolicyOf(p, chunked), Pool: pool, MaxModelLen: p.MaxModelLen, ChunkTokens: p.ChunkTokens, OutputDelay: p.OutputDelay(), LoRA: p.LoRA}
	c.MaxNumSeqs, c.MaxBatchedTokens = p.Batch()
	switch o := p.Engine; c.Policy {
	case V1:
		c.LongPrefillTokens = o.LongPrefillTokens
	case SGLang:
		c.ChunkTokens = o.ChunkedPrefillSize
		config.Default(&c.ChunkTokens, 8192)
		c.ChunkTokens = max(c.ChunkTokens, 0) // -1: prompts are not cut
		c.LongestPrefixFirst = o.SchedulePolicy == engine.LPM
		c.Conservativeness = o.ScheduleConservativeness
		config.Default(&c.Conservativeness, 1)
		c.PrefillDecodeInterval = o.PrefillDecodeInterval
	}
	return c
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	var bad config.Faults
	if c.Pool == nil {
		bad.Add("Pool", nil, "give the blocks of the KV cache")
	}
	chunk := 1
	if c.Policy == SGLang {
		chunk = 0 // it cuts no prompt
	}
	for _, f := range []struct {
		name     string
		v, least int
	}{{"MaxModelLen", c.MaxModelLen, 1}, {"MaxNumSeqs", c.MaxNumSeqs, 1}, {"MaxBatchedTokens", c.MaxBatchedTokens, 1}, {"ChunkTokens", c.ChunkTokens, chunk}} {
		if f.v < f.least {
			bad.Add(f.name, f.v, "use %d or more", f.least)
		}
	}
	if c.Policy == PrefillFirst && c.MaxBatchedTokens < c.MaxModelLen {
		bad.Add("MaxBatchedTokens", c.MaxBatchedTokens, "use %d or more, the longest prompt", c.MaxModelLen)
	}
	return bad.Err("batching.Config")
}

// A Scheduler is an engine.Scheduler that batches continuously. See the package comment.
type Scheduler struct {
	cfg    Config
	policy former
	seqs   map[uint64]*sequence

	future  []*sequence // not ready yet, by Ready
	waiting []*sequence // first come, first served
	pending []*sequence
	running []*sequence // in order of admission

	waitingTokens int // of prompts that are to be computed here, or loaded

	step    *engine.Step // under way; it is spare, whose slices are used again
	works   []*sequence  // its sequences, in the order of its Works
	spare   engine.Step
	ended   time.Duration // when the last step ended
	starved bool          // something waits for blocks or for room in the batch
	relief  time.Duration // when an event last gave a starved scheduler some
	release []*sequence   // cancelled while the step under way computes them

	out     []engine.Output // of the last step, leaving when the next is launched
	delayed []delayed       // leaving at their time, none before one that stands before it

	offload     offload
	adapters    adapters
	preemptions uint64
	now         time.Duration // of the Step
	ready       engine.Ready
}

type delayed struct {
	at time.Duration
	engine.Output
}

// NewScheduler returns a scheduler with nothing to do.
func NewScheduler(cfg Config) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{
		cfg: cfg, policy: cfg.former(), seqs: make(map[uint64]*sequence), adapters: newAdapters(cfg.LoRA),
		offload: offload{tiers: cfg.Tiers, copies: make(map[uint64]*copying)},
	}, nil
}

// Step implements engine.Scheduler.
func (s *Scheduler) Step(now, notBefore time.Duration, events ...engine.Event) *engine.Ready {
	s.ready = engine.Ready{Outputs: s.ready.Outputs[:0], Allocated: s.ready.Allocated[:0], Copies: s.ready.Copies[:0], Refused: s.ready.Refused[:0], Suspended: s.ready.Suspended[:0]}
	s.now = now
	for _, ev := range events {
		switch ev := ev.(type) {
		case engine.Add:
			s.add(ev.Request)
		case engine.Cancel:
			s.cancel(ev.ID)
			s.relieve(now)
		case engine.Done:
			s.done(ev)
		case engine.Landed:
			s.landed(ev)
		case engine.Copied:
			s.copied(ev)
		case engine.Free:
			if q := s.seqs[ev.ID]; q != nil && q.where == kept {
				s.end(q)
				s.relieve(now)
			}
		case engine.Suspend:
			s.suspend(ev.ID)
		case engine.Resume:
			s.resume(ev.ID, now)
		default:
			panic(fmt.Sprintf("batching: unknown event %T", ev))
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

// Current implements engine.Scheduler.
func (s *Scheduler) Current() *engine.Step { return s.step }

// Load implements engine.Scheduler.
func (s *Scheduler) Load() engine.Load {
	l := engine.Load{Running: len(s.running), Waiting: len(s.waiting) + len(s.future) + len(s.pending), WaitingTokens: s.waitingTokens, Preemptions: s.preemptions, Adapters: s.adapters.shown, AdapterSlots: s.cfg.LoRA.MaxLoRAs, AdapterLoads: s.adapters.loads, AdapterLoading: s.adapters.loading, AdapterSwitches: s.adapters.switches}
	if s.step != nil {
		for i, w := range s.step.Works {
			if w.Prompt && s.works[i].where == inWaiting { // in the batch, though in the queue until it is done
				l.Running++
				l.Waiting--
			}
		}
	}
	if len(s.waiting)+len(s.future) == 0 {
		l.Room = max(s.cfg.MaxNumSeqs-len(s.running)-len(s.pending), 0)
	}
	return l
}

// count keeps waitingTokens when a sequence's place or what is held of it has changed.
func (s *Scheduler) count(q *sequence) {
	left := 0
	if q.prompt && (q.where == inFuture || q.where == inWaiting || q.where == inRunning || q.where == inPending && q.loading) {
		left = q.Len() - q.Held
	}
	s.waitingTokens += left - q.left
	q.left = left
}

func (s *Scheduler) add(r engine.Request) {
	if err := s.admissible(r); err != nil {
		s.ready.Refused = append(s.ready.Refused, engine.Refusal{ID: r.ID, Err: err})
		return
	}
	q := &sequence{Sequence: *engine.NewSequence(r), prompt: true}
	s.adapters.any = s.adapters.any || r.Adapter != ""
	if s.cfg.PrefixCaching {
		if q.hashes = r.Prefix; q.hashes == nil {
			q.hashes = kvcache.PrefixHashes(kvcache.Root(r.Adapter, r.Salt), r.Prompt, s.cfg.Pool.BlockTokens())
		}
	}
	q.shared = len(q.hashes)
	q.hashes = slices.Clip(q.hashes) // the caller's, who may go on with it
	s.seqs[r.ID] = q
	i := len(s.future)
	for i > 0 && s.future[i-1].Ready > r.Ready {
		i--
	}
	s.future = slices.Insert(s.future, i, q)
	s.count(q)
}

func (s *Scheduler) admissible(r engine.Request) error {
	if err := r.Validate(s.cfg.Pool, s.cfg.MaxModelLen); err != nil {
		return err
	}
	if s.seqs[r.ID] != nil {
		return fmt.Errorf("%w: %d", engine.ErrDuplicate, r.ID)
	}
	return nil
}

// admitAwaiting gives blocks to sequences whose KV comes from elsewhere, in
// order, until the pool or the batch is full. It needs no step.
func (s *Scheduler) admitAwaiting() {
	s.adapters.gather(s)
	for i := 0; i < len(s.waiting); {
		q := s.waiting[i]
		if q.KV != engine.Await || len(s.running)+len(s.pending) >= s.cfg.MaxNumSeqs {
			return
		}
		if !s.admits(q) {
			i++
			continue
		}
		if !s.allocate(q) {
			return
		}
		s.dequeue(i)
		q.where = inPending
		s.count(q)
		s.pending = append(s.pending, q)
		s.ready.Allocated = append(s.ready.Allocated, &q.Sequence)
	}
}

// dequeue takes the sequence at place i out of those that wait.
func (s *Scheduler) dequeue(i int) {
	if i == 0 {
		s.waiting = s.waiting[1:] // moves none of a long queue
		return
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
}

func (s *Scheduler) landed(ev engine.Landed) {
	q := s.seqs[ev.ID]
	if q == nil || q.where != inPending {
		return // cancelled meanwhile
	}
	s.pending = remove(s.pending, q)
	q.Held = q.Len()
	s.commit(q)
	s.spill(ev.At)
	for _, t := range ev.Given {
		q.Append(t)
	}
	// If none is given, the last token of the prompt goes through the model once more to draw the
	// first of the output; its KV is there already.
	q.Held = q.Len() - 1
	q.runnable = ev.At
	if q.Output() >= q.MaxTokens {
		s.end(q)
		return
	}
	q.where, q.prompt = inRunning, false
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
	case suspended:
		s.unsuspend(q)
	case inRunning:
		s.running = remove(s.running, q)
	}
	if s.inStep(q) {
		// The executor may be writing its blocks.
		q.where = finished
		s.forget(q)
		delete(s.seqs, id)
		s.release = append(s.release, q)
		return
	}
	s.end(q)
}

// drop forgets outputs that have not left.
func (s *Scheduler) drop(id uint64) {
	s.out = slices.DeleteFunc(s.out, func(o engine.Output) bool { return o.Seq.ID == id })
	s.delayed = slices.DeleteFunc(s.delayed, func(o delayed) bool { return o.Seq.ID == id })
}

// end releases a sequence's blocks and forgets it.
func (s *Scheduler) end(q *sequence) {
	s.free(q)
	s.forget(q)
	delete(s.seqs, q.ID)
}

func (s *Scheduler) free(q *sequence) {
	if err := q.Table.Release(s.cfg.Pool); err != nil {
		// Only the scheduler releases blocks, so this is a bug here.
		panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
	}
}

func remove(list []*sequence, q *sequence) []*sequence {
	if i := slices.Index(list, q); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// A sequence is what the scheduler knows of one beside what all may see.
type sequence struct {
	engine.Sequence
	prompt bool // its prompt, or what a preemption took, is not computed yet
	// committed is how many full blocks have been offered to the prefix cache.
	committed int
	hashes    []kvcache.Hash // of the prompt's full blocks, if prefix caching is on, and with tiers of those after them
	shared    int            // how many of these are the prompt's, which others may have too
	loading   bool           // its blocks are being loaded from a tier
	queried   bool           // the pool has counted that they were looked up
	refused   refusal        // when blocks were last asked for in vain
	matched   int            // of SGLang: blocks that the prefix cache has
	left      int            // of the scheduler's waitingTokens
	suspend   bool           // as soon as its tokens are computed
	where     stage
	runnable  time.Duration // when it became so; a step is not launched before
}

// A refusal is what the pool was like when it had too few blocks for a sequence.
// While it has no more, nor other prefixes, and no sequence has left, asking again is in
// vain; asking means to look up every block of the prompt, at every step of a node that is full.
type refusal struct{ free, prefixes, running int }

// A stage is how far a sequence has come.
type stage uint8

const (
	inFuture stage = iota
	inWaiting
	inPending // blocks allocated, KV on its way from another node or a tier
	suspended // among those that are pending
	inRunning
	finished
	kept // finished, blocks held for a consumer
)
