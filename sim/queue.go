package sim

import (
	"cmp"
	"time"

	"kvferry/connector"
)

// A kind of event.
type kind uint8

const (
	wake    kind = iota // the node asked to be called
	stepEnd             // of the node's engine
	post                // transfer starts
	deliver             // ev reaches the node
	landed              // transfer is all there, and those listed with it
	arrive              // the load's next request
)

// An event is something that will happen at a time. Those of one time happen in
// the order in which they were caused.
type event struct {
	node     *node
	ev       connector.Event
	transfer *transfer
	kind     kind
}

// A queue has its items by key, those of one key in the order in which they came.
// It is a heap with four children an element: half as deep as with two, and the four
// lie side by side.
type queue[K cmp.Ordered, T any] struct {
	heap []item[K, T]
	seq  uint64
}

type item[K cmp.Ordered, T any] struct {
	key K
	seq uint64
	v   T
}

func (a *item[K, T]) before(b *item[K, T]) bool {
	return a.key < b.key || a.key == b.key && a.seq < b.seq
}

func (q *queue[K, T]) len() int { return len(q.heap) }

func (q *queue[K, T]) push(key K, v T) {
	q.seq++
	e := item[K, T]{key, q.seq, v}
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

// first is the least key; false if there is none.
func (q *queue[K, T]) first() (K, bool) {
	if len(q.heap) == 0 {
		var none K
		return none, false
	}
	return q.heap[0].key, true
}

func (q *queue[K, T]) pop() T {
	top := q.heap[0].v
	n := len(q.heap) - 1
	e := q.heap[n]
	q.heap[n] = item[K, T]{} // what it points to may be large
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

// agenda is what will happen.
type agenda = queue[time.Duration, event]
