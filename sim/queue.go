package sim

import (
	"time"

	"kvferry/connector"
)

// A kind of event.
type kind uint8

const (
	wake    kind = iota // the node asked to be called
	stepEnd             // of the node's engine
	layer               // arg's KV of the step under way is in its blocks
	deliver             // ev reaches the node
	arrive              // the load's next request
)

// An event is something that will happen at a time. Those of one time happen in
// the order of seq, in which they were caused.
type event struct {
	at   time.Duration
	seq  uint64
	node *node
	ev   connector.Event
	arg  int32
	kind kind
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// queue is a heap of events with four children a place: half as deep as with
// two, and the four lie side by side.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// first is when the next event happens; false if there is none.
func (q *queue) first() (time.Duration, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

func (q *queue) pop() event {
	top := q.heap[0]
	n := len(q.heap) - 1
	e := q.heap[n]
	q.heap[n] = event{} // its ev may be large
	q.heap = q.heap[:n]
	if n == 0 {
		return top
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for c := least + 1; c < min(4*i+5, n); c++ {
			if q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if !q.heap[least].before(&e) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
	return top
}
