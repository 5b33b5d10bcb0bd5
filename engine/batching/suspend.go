package batching

import (
	"slices"
	"time"

	"kvferry/engine"
)

// suspend has a sequence stop once no step has it and it is not computed again.
func (s *Scheduler) suspend(id uint64) {
	q := s.seqs[id]
	if q == nil || q.where == suspended || q.where == finished || q.where == kept {
		return
	}
	q.suspend = true
	if q.where == inRunning && !q.prompt && !s.inStep(q) {
		s.suspended(q)
	}
}

// inStep reports whether the step under way has the sequence.
func (s *Scheduler) inStep(q *sequence) bool { return s.step != nil && slices.Contains(s.works, q) }

// suspended takes a sequence that generates out of the batch. Its place there and its blocks
// stay its own.
func (s *Scheduler) suspended(q *sequence) {
	s.running = remove(s.running, q)
	q.suspend, q.where = false, suspended
	s.pending = append(s.pending, q)
	s.ready.Suspended = append(s.ready.Suspended, &q.Sequence)
}

// unsuspend takes a sequence from those that are suspended, before that is said perhaps.
func (s *Scheduler) unsuspend(q *sequence) {
	s.pending = remove(s.pending, q)
	s.ready.Suspended = slices.DeleteFunc(s.ready.Suspended, func(o *engine.Sequence) bool { return o == &q.Sequence })
}

// resume has a sequence go on, behind those that run.
func (s *Scheduler) resume(id uint64, now time.Duration) {
	q := s.seqs[id]
	if q == nil {
		return
	}
	q.suspend = false
	if q.where == suspended {
		s.unsuspend(q)
		q.where, q.runnable = inRunning, now
		s.running = append(s.running, q)
	}
}
