package connector

import (
	"container/heap"
	"time"
)

// deadlines is a heap of live requests by the time at which they expire.
type deadlines struct{ h deadlineHeap }

// set makes r expire at that time, 0 for never.
func (d *deadlines) set(r *request, at time.Duration) {
	d.remove(r)
	if at > 0 {
		r.expires = at
		heap.Push(&d.h, r)
	}
}

func (d *deadlines) remove(r *request) {
	if r.heap > 0 {
		heap.Remove(&d.h, r.heap-1)
	}
}

// pop returns a request that has expired, or nil.
func (d *deadlines) pop(now time.Duration) *request {
	if len(d.h) == 0 || d.h[0].expires > now {
		return nil
	}
	return heap.Pop(&d.h).(*request)
}

// first is when the next request expires, 0 if none does.
func (d *deadlines) first() time.Duration {
	if len(d.h) == 0 {
		return 0
	}
	return d.h[0].expires
}

// deadlineHeap keeps each request's position plus one in request.heap.
type deadlineHeap []*request

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i+1, j+1
}

func (h *deadlineHeap) Push(x any) {
	r := x.(*request)
	*h = append(*h, r)
	r.heap = len(*h)
}

func (h *deadlineHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	r.heap = 0
	return r
}
