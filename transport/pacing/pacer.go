package pacing

import (
	"container/heap"
	"fmt"
	"sync"
	"time"

	"kvferry/clock"
)

// A Pacer holds what moves over a link until the link would have delivered it. Its methods may be
// called from any goroutine.
type Pacer[T any] struct {
	link  Link
	clock clock.Clock
	timer clock.Timer

	mu   sync.Mutex
	busy time.Duration // when the link is free again
	held items[T]
	kick chan struct{}
}

// New returns a pacer of a link. The caller has it Run, which frees what it has.
func New[T any](link Link, clk clock.Clock) (*Pacer[T], error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, fmt.Errorf("pacing: %w", err)
	}
	return &Pacer[T]{link: link, clock: clk, timer: timer, kick: make(chan struct{}, 1)}, nil
}

// Occupy returns when n bytes submitted at now are delivered, after all before them.
func (p *Pacer[T]) Occupy(now time.Duration, n int64) (due time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = max(p.busy, now) + time.Duration(float64(n)/p.link.BytesPerSecond*1e9)
	return p.busy + p.link.Latency
}

// Hold keeps what is given until it is due.
func (p *Pacer[T]) Hold(due time.Duration, what T) {
	p.mu.Lock()
	first := len(p.held) == 0 || due < p.held[0].due
	heap.Push(&p.held, item[T]{due, what})
	p.mu.Unlock()
	if first {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// Run releases what is due until stop is closed. What is held then stays so.
func (p *Pacer[T]) Run(stop <-chan struct{}, release func(T)) {
	defer p.timer.Close()
	var due []T
	for {
		now := p.clock.Now()
		p.mu.Lock()
		for len(p.held) > 0 && p.held[0].due <= now {
			due = append(due, heap.Pop(&p.held).(item[T]).what)
		}
		if len(p.held) > 0 {
			p.timer.Set(p.held[0].due)
		}
		p.mu.Unlock()
		for _, what := range due {
			release(what)
		}
		clear(due)
		due = due[:0]
		select {
		case <-p.timer.C():
		case <-p.kick:
		case <-stop:
			return
		}
	}
}

type item[T any] struct {
	due  time.Duration
	what T
}

// items are a heap, what is due first on top.
type items[T any] []item[T]

func (h items[T]) Len() int           { return len(h) }
func (h items[T]) Less(i, j int) bool { return h[i].due < h[j].due }
func (h items[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *items[T]) Push(x any)        { *h = append(*h, x.(item[T])) }
func (h *items[T]) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = item[T]{}
	*h = old[:len(old)-1]
	return last
}
