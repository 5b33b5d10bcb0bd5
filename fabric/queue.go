package fabric

import "cmp"

// A Queue has its items by key, those of one key in the order in which they came.
// It is a heap with four children an element: half as deep as with two, and the four
// lie side by side.
type Queue[K cmp.Ordered, T any] struct {
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

// Len is how many there are.
func (q *Queue[K, T]) Len() int { return len(q.heap) }

// Push adds one.
func (q *Queue[K, T]) Push(key K, v T) {
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

// First is the least key; false if there is none.
func (q *Queue[K, T]) First() (K, bool) {
	if len(q.heap) == 0 {
		var none K
		return none, false
	}
	return q.heap[0].key, true
}

// Pop takes the first one out; there is one.
func (q *Queue[K, T]) Pop() T {
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

// Clear takes all out, and keeps their room.
func (q *Queue[K, T]) Clear() {
	clear(q.heap)
	q.heap, q.seq = q.heap[:0], 0
}
