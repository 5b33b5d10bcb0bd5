package connector

import (
	"container/heap"
	"testing"
	"time"
)

// A world is virtual time: the least discrete-event loop that can drive cores.
type world struct {
	now    time.Duration
	events eventHeap
	seq    int
	tb     testing.TB
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func (w *world) at(t time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{t, w.seq, do})
}

func (w *world) run() {
	for len(w.events) > 0 {
		ev := heap.Pop(&w.events).(event)
		if ev.at < w.now {
			w.tb.Fatalf("time runs backwards: %v after %v", ev.at, w.now)
		}
		w.now = ev.at
		ev.do()
	}
}
