package batching

import (
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// An offload is what the scheduler has of the tiers below the pool, as vLLM has it with its
// OffloadingConnector (v1/offloading/scheduler.py, read in 0.32): full blocks are copied to host
// memory as soon as they are computed, so that a sequence that is preempted has its KV there
// already, and is copied back. A prompt of which the tiers have more than the pool waits, with all
// its blocks, until that is copied. Steps go on meanwhile.
//
// Blocks that are copied are held until that is over. Stores go one after another, all that has
// come together meanwhile at once, and so do writes to the disk. Loads go side by side.
type offload struct {
	tiers  *kvcache.Tiers // nil for none
	copies map[uint64]*copying
	last   uint64

	hashes  []kvcache.Hash // computed, and not in host memory: to be stored
	refs    []kvcache.Ref
	storing bool
	writes  [][]kvcache.Hash // stored, and not on the disk: to be written
	writing bool
}

// copying is a copy under way.
type copying struct {
	engine.Copy
	hashes []kvcache.Hash
	refs   []kvcache.Ref // held until it is over
	q      *sequence     // that waits for it
	first  int           // the place of refs[0] in its block table
	disk   int           // blocks of those that come from the disk
}

// begin has blocks copied from a time on.
func (s *Scheduler) begin(c *copying, way engine.Way, blocks int, since time.Duration) {
	o := &s.offload
	o.last++
	c.Copy = engine.Copy{ID: o.last, Way: way, Blocks: blocks, Since: since}
	if way == engine.ToGPU {
		c.Seq, c.Refs, c.First = c.q.ID, c.refs, c.first
	}
	o.copies[c.ID] = c
	s.ready.Copies = append(s.ready.Copies, c.Copy)
}

// store has full blocks of a sequence, from its block from on, copied to host memory, as far as
// they are not there.
func (s *Scheduler) store(q *sequence, from, to int) {
	o := &s.offload
	refs := q.Table.Refs()
	n := len(o.refs)
	for i := from; i < to; i++ {
		if o.tiers.Want(q.hashes[i]) {
			o.hashes, o.refs = append(o.hashes, q.hashes[i]), append(o.refs, refs[i])
		}
	}
	if err := s.cfg.Pool.Retain(o.refs[n:]); err != nil {
		panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
	}
}

// spill starts what is to be copied away from the pool and from host memory, one of each at a time.
func (s *Scheduler) spill(since time.Duration) {
	o := &s.offload
	if !o.storing && len(o.refs) > 0 {
		o.storing = true
		s.begin(&copying{hashes: o.hashes, refs: o.refs}, engine.ToHost, len(o.refs), since)
		o.hashes, o.refs = nil, nil
	}
	for !o.writing && len(o.writes) > 0 {
		held := o.tiers.Held(o.writes[0])
		o.writes = o.writes[1:]
		if o.writing = len(held) > 0; o.writing {
			s.begin(&copying{hashes: held}, engine.ToDisk, len(held), since)
		}
	}
}

// load has what the tiers have of a sequence copied into its blocks, which begin with pooled
// ones. The sequence waits for it.
func (s *Scheduler) load(q *sequence, pooled int, f kvcache.Found) {
	if f.Blocks == 0 {
		return
	}
	refs := slices.Clone(q.Table.Refs()[pooled : pooled+f.Blocks])
	if err := s.cfg.Pool.Retain(refs); err != nil {
		panic(fmt.Sprintf("batching: request %d: %v", q.ID, err))
	}
	if !q.queried {
		s.offload.tiers.Hit(f, s.cfg.Pool.BlockTokens())
	}
	q.loading = true
	q.Load(f.Blocks * s.cfg.Pool.BlockTokens())
	q.Held = q.Cached()
	since := max(s.spare.At, q.runnable) // of the step that is being formed
	if s.now-since > engine.MaxLag {
		since = s.now
	}
	c := &copying{hashes: q.hashes[pooled : pooled+f.Blocks : pooled+f.Blocks], refs: refs, q: q, first: pooled, disk: f.Disk}
	if f.Disk > 0 {
		s.begin(c, engine.FromDisk, f.Disk, since)
	} else {
		s.begin(c, engine.ToGPU, f.Blocks, since)
	}
}

// park takes prompts that are being loaded out of the queue.
func (s *Scheduler) park() {
	if s.offload.tiers == nil {
		return // nothing is loaded, and the queue may be long
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(q *sequence) bool {
		if q.loading {
			q.where = inPending
			s.pending = append(s.pending, q)
		}
		return q.loading
	})
}

// holding is how many sequences at the head of the queue have their blocks. No other goes before
// them: it might wait for blocks that only they can give back.
func (s *Scheduler) holding() int {
	n := 0
	for n < len(s.waiting) && len(s.waiting[n].Table.Refs()) > 0 {
		n++
	}
	return n
}

// copied ends a copy.
func (s *Scheduler) copied(ev engine.Copied) {
	o := &s.offload
	c := o.copies[ev.ID]
	if c == nil {
		panic(fmt.Sprintf("batching: copy %d is over, and was not begun", ev.ID))
	}
	delete(o.copies, ev.ID)
	switch c.Way {
	case engine.ToHost:
		o.storing = false
		if lacks := o.tiers.Stored(c.hashes); len(lacks) > 0 {
			o.writes = append(o.writes, lacks)
		}
	case engine.ToDisk:
		o.writing = false
		o.tiers.Written(c.hashes)
	case engine.FromDisk:
		o.tiers.Read(c.hashes, c.disk)
		s.begin(c, engine.ToGPU, len(c.refs), ev.At)
		return
	case engine.ToGPU:
		o.tiers.Loaded(len(c.refs))
		if q := c.q; s.seqs[q.ID] == q { // else it was cancelled
			q.loading = false
			q.where, q.runnable = inWaiting, ev.At
			s.pending = remove(s.pending, q)
			s.commit(q)
			s.waiting = slices.Insert(s.waiting, s.holding(), q)
		}
	}
	if err := s.cfg.Pool.Release(c.refs); err != nil {
		panic(fmt.Sprintf("batching: copy %d: %v", c.ID, err))
	}
	s.relieve(max(s.relief, ev.At))
	s.spill(ev.At)
}

// forget lets go of what the tiers have of a sequence that is over and nobody else can use. It is waited for no more.
func (s *Scheduler) forget(q *sequence) {
	s.waitingTokens, q.left = s.waitingTokens-q.left, 0
	if len(q.hashes) > q.shared {
		s.offload.tiers.Forget(q.hashes[q.shared:])
	}
}
