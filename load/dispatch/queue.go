// Package dispatch says which request of a load goes out when: by its time, by what it follows,
// and by how many may be under way at once. The live client (bench/client) and the simulator (sim)
// both run on its [Queue], a machine without clock and goroutines.
//
// Times are since the start of the run. A queue keeps the requests that wait, the conversations
// that they continue, and 8 bytes for each request that has gone; what it hands out is the
// caller's.
package dispatch

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"slices"
	"time"

	"kvferry/kvcache"
	"kvferry/load"
)

// Never is the time of what nothing but another event can bring about. Queue.ends has it of
// requests that have not gone, and gone of those that are under way.
const (
	Never = time.Duration(math.MaxInt64)
	gone  = Never - 1
)

// A Queue lets the requests of a load go: each when it is due, when those that it follows
// have ended, and when there is room. It is a machine without clock and goroutines; the
// live client and the simulator both drive it:
//
//	s, ok, err := q.Next(now)            // s goes out at once
//	at := q.Wake(now)                    // if not ok: ask again then, or when one has ended
//	q.Ended(index, at, answer, failed)
//
// Of those that are due, one that follows others goes before one that does not: a
// conversation that has begun is not kept waiting by those that have not. Otherwise the
// earliest due goes first, then the first in the stream.
//
// The queue reads the load up to the next request that waits for nothing. It keeps in memory
// the requests that wait, the conversations that they continue, and 8 bytes for each
// request that has gone. It is for one goroutine.
type Queue struct {
	load  load.Load
	drawn int   // requests taken from the source
	over  bool  // it has no more
	err   error // the first

	coming *item         // the next that follows none; nil before the first, and after the last
	last   time.Duration // At of the last that followed none

	ends    []time.Duration // of each request that was drawn
	failed  map[int]bool    // of those that are over
	waiting map[int][]*item // what waits for the end of a request
	waits   int             // those, and those in due
	due     dues
	skipped []*item // to be told of

	slots  []time.Duration // the free places in flight, with the time since when they are, in the order in which they came
	room   time.Duration   // the latest of the slots that were taken
	goesOn map[int]bool    // requests that are not over, and that others continue
	turns  map[int]*Turn   // those of them that have gone
	busy   int             // requests that have gone and are not over
}

// A Turn is one exchange of a conversation; with Before it is all of it.
type Turn struct {
	Before   *Turn // nil of the first
	Prompt   []kvcache.Token
	Text     string
	Messages []load.Message
	Answer   Answer
}

// An Answer is what a request got: tokens, text or both, as far as the client knows.
type Answer struct {
	Tokens []kvcache.Token
	Text   string
}

// A Sending is a request that goes out.
type Sending struct {
	load.Request
	Index   int           // in the stream, from 0
	Due     time.Duration // At, or later by what it followed
	Room    time.Duration // when there was room for it; 0 if that was before it was due
	History *Turn         // the conversation that it continues; nil for none
	Skipped bool          // it does not go out: one that it follows failed
	// Continued says that others continue it: Ended wants its answer.
	Continued bool
}

// Conversation is the whole prompt in tokens: the history, and what is asked now.
func (s *Sending) Conversation() []kvcache.Token {
	if s.History == nil {
		return s.Prompt
	}
	var turns []*Turn
	n := len(s.Prompt)
	for t := s.History; t != nil; t = t.Before {
		turns = append(turns, t)
		n += len(t.Prompt) + len(t.Answer.Tokens)
	}
	all := make([]kvcache.Token, 0, n)
	for _, t := range slices.Backward(turns) {
		all = append(append(all, t.Prompt...), t.Answer.Tokens...)
	}
	return append(all, s.Prompt...)
}

// An item is a request in the queue.
type item struct {
	load.Request
	index   int
	left    int           // requests that it still waits for
	due     time.Duration // once left is 0
	history *Turn
}

// New begins a run of the load, which is still the caller's to close.
func New(l load.Load) *Queue {
	return &Queue{
		load: l, slots: make([]time.Duration, l.InFlight),
		waiting: map[int][]*item{}, failed: map[int]bool{}, goesOn: map[int]bool{}, turns: map[int]*Turn{},
	}
}

// Wake is when there is something to ask Next for, at now or later: Never if only the end of
// another request can bring it, or nothing (see [Queue.Done]).
func (q *Queue) Wake(now time.Duration) time.Duration {
	_, ready := q.head(now)
	return ready
}

// head is what goes next, nil if it is something else than a request, and when.
func (q *Queue) head(now time.Duration) (next *item, ready time.Duration) {
	q.read()
	until := Never
	if q.load.Until > 0 {
		if until = q.load.Until; now >= until {
			q.stop()
		}
	}
	if len(q.skipped) > 0 {
		return nil, now
	}
	next = q.coming
	if len(q.due) > 0 && (next == nil || q.due[0].due <= max(now, next.due)) {
		next = q.due[0]
	}
	switch {
	case next == nil && q.err != nil:
		return nil, now
	case next == nil:
		return nil, Never
	}
	ready = max(next.due, now)
	if q.load.InFlight > 0 {
		if len(q.slots) == 0 {
			return next, Never
		}
		ready = max(ready, q.slots[0])
	}
	return next, min(ready, until)
}

// Next is the request that goes out at now, if ok; if not, Wake says when there is one. An
// error is the load's; it comes when all that was drawn before it has gone, or waits for what
// has. now does not go back.
func (q *Queue) Next(now time.Duration) (s Sending, ok bool, err error) {
	next, ready := q.head(now)
	switch {
	case ready > now:
		return Sending{}, false, nil
	case next != nil:
		return q.take(next), true, nil
	case len(q.skipped) > 0:
		f := q.skipped[0]
		q.skipped = q.skipped[1:]
		q.finish(f.index, now, Answer{}, true)
		return Sending{Request: f.Request, Index: f.index, Due: now, Skipped: true}, true, nil
	}
	return Sending{}, false, q.err
}

// take lets an item go that is due and has room.
func (q *Queue) take(next *item) Sending {
	if next == q.coming {
		q.coming = nil
		q.read() // whether others go on with it
	} else {
		heap.Pop(&q.due)
		q.waits--
	}
	s := Sending{Request: next.Request, Index: next.index, Due: next.due, History: next.history}
	if q.load.InFlight > 0 {
		q.room = max(q.room, q.slots[0])
		q.slots = q.slots[1:]
		if q.room > s.Due {
			s.Room = q.room
		}
	}
	q.busy++
	q.ends[s.Index] = gone
	if s.Continued = q.goesOn[s.Index]; s.Continued {
		q.turns[s.Index] = &Turn{Before: s.History, Prompt: s.Prompt, Text: s.Text, Messages: s.Messages}
	}
	return s
}

// Ended says that a request that went out is over: the client had its last token, or its
// error, at that time, which may be later than now. After a failure those that
// follow it are skipped.
func (q *Queue) Ended(index int, at time.Duration, a Answer, failed bool) {
	q.busy--
	if q.load.InFlight > 0 {
		q.slots = append(q.slots, at)
	}
	q.finish(index, at, a, failed)
}

// Done reports whether everything has gone and is over.
func (q *Queue) Done() bool {
	return q.over && q.coming == nil && q.waits == 0 && len(q.skipped) == 0 && q.busy == 0
}

// read takes requests from the source up to one that follows none, if there is none yet.
func (q *Queue) read() {
	for q.coming == nil && !q.over && q.err == nil {
		r, ok, err := q.load.Next()
		switch {
		case err != nil:
			q.err = err
			return
		case !ok:
			q.over = true
			return
		}
		next := &item{Request: r, index: q.drawn, due: r.At}
		if q.err = q.check(&r); q.err != nil {
			return
		}
		q.drawn++
		q.ends = append(q.ends, Never)
		if len(r.After) == 0 {
			q.last, q.coming = r.At, next
			return
		}
		q.wait(next)
	}
}

// check holds a request to what package load says of it.
func (q *Queue) check(r *load.Request) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("request %d: %w", q.drawn, fmt.Errorf(format, args...))
	}
	if len(r.After) == 0 && r.At < q.last {
		return bad("the load goes back in time: due at %v after %v", r.At, q.last)
	}
	if r.At < 0 || r.Delay < 0 {
		return bad("due at %v, %v after others: times begin at 0", r.At, r.Delay)
	}
	if r.Continues && len(r.After) == 0 {
		return bad("it continues no request")
	}
	for _, i := range r.After {
		if i < 0 || i >= q.drawn {
			return bad("it follows request %d: only those before it can be followed", i)
		}
	}
	if r.Continues && q.ends[r.After[0]] != Never {
		return bad("it continues request %d, which has gone: it must come before the next request that follows none", r.After[0])
	}
	return nil
}

// wait has an item wait for what it follows, as far as that is not over.
func (q *Queue) wait(f *item) {
	q.waits++
	for _, i := range f.After {
		switch end := q.ends[i]; {
		case q.failed[i]:
			q.skip(f)
			return
		case end == Never || end == gone:
			f.left++
			q.waiting[i] = append(q.waiting[i], f)
		default:
			f.due = max(f.due, end+f.Delay)
		}
	}
	if f.Continues {
		q.goesOn[f.After[0]] = true
	}
	if f.left == 0 {
		heap.Push(&q.due, f)
	}
}

// skip gives an item up. Where it still waits, it is passed over.
func (q *Queue) skip(f *item) {
	f.left = -1
	q.waits--
	q.skipped = append(q.skipped, f)
}

// finish notes the end of a request, gone out or skipped, for those that follow it.
func (q *Queue) finish(index int, at time.Duration, a Answer, failed bool) {
	q.ends[index] = at
	if failed {
		q.failed[index] = true
	}
	turn := q.turns[index]
	delete(q.turns, index)
	delete(q.goesOn, index)
	if turn != nil {
		turn.Answer = a
	}
	for _, f := range q.waiting[index] {
		if f.left < 0 {
			continue
		}
		if failed {
			q.skip(f)
			continue
		}
		f.left--
		f.due = max(f.due, at+f.Delay)
		if f.Continues && f.After[0] == index {
			f.history = turn
		}
		if f.left == 0 {
			heap.Push(&q.due, f)
		}
	}
	delete(q.waiting, index)
}

// stop drops what has not gone.
func (q *Queue) stop() {
	q.over, q.coming, q.err = true, nil, nil
	q.waits, q.due, q.skipped = 0, nil, nil
	clear(q.waiting)
}

// dues are items whose time is known: the earliest first, of equal times the first in the
// stream.
type dues []*item

func (d dues) Len() int { return len(d) }
func (d dues) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(d[i].due, d[j].due), cmp.Compare(d[i].index, d[j].index)) < 0
}
func (d dues) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *dues) Push(x any)   { *d = append(*d, x.(*item)) }
func (d *dues) Pop() any {
	last := (*d)[len(*d)-1]
	(*d)[len(*d)-1] = nil
	*d = (*d)[:len(*d)-1]
	return last
}
