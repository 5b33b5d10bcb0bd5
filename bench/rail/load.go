package rail

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/stats"
	"kvferry/internal/clock"
	"kvferry/transport"
)

// An initiator submits batches to the target.
type initiator struct {
	engine *transport.Engine
	target *transport.Target
}

// A load is the threads of one point, running.
type load struct {
	plan    *plan
	clk     clock.Clock // the engine's
	mem     []byte
	timeout time.Duration
	iters   int // batches of each thread; 0 is until halt
	// initiators share the threads: thread i is i mod len(initiators)'s.
	initiators []initiator

	// Of a point of Config.steady: meter watches it, and window is how many bytes may be under way.
	meter  *rateMeter
	window atomic.Int64

	// open and shut are when the measured interval begins and ends; 0 is not yet. Batches count that
	// completed in it.
	open, shut atomic.Int64
	slot       time.Duration // rates are kept by slots of this length
	halt       atomic.Bool   // no more Submit
	moved      atomic.Int64  // bytes completed, in the interval or not
	failed     chan struct{} // closed with the first batch that failed
	once       sync.Once
	wg         sync.WaitGroup
	threads    []*thread
}

// A thread submits batches and collects them, on one goroutine.
type thread struct {
	load          *load
	id            int
	local, remote []int32             // the order of its blocks
	landed        []bool              // by place in the order
	next          int                 // place of the next block; goes on past the end
	batches       int                 // submitted
	reqs          []transport.Request // of the batch being submitted; Submit keeps none
	flights       []flight
	idle          []int         // flights not under way
	ended         chan int      // flights whose batch has ended
	count         tally         // of the interval
	last          time.Duration // of the last completion
	unsure        []int         // of a point of rounds: places of batches that failed
	errors        int
	err           error
}

// A flight is one of the depth batches that a thread has under way.
type flight struct {
	first int // place of its first block
	began time.Duration
	batch *transport.Batch
	post  time.Duration
}

// A tally is what completed in the interval.
type tally struct {
	batches, blocks, bytes int64
	latency, post          stats.Histogram
	slots                  []int64 // bytes
}

func newLoad(p *plan, clk clock.Clock, initiators []initiator, mem []byte, timeout time.Duration) *load {
	l := &load{plan: p, clk: clk, initiators: initiators, mem: mem, timeout: timeout, slot: time.Second, failed: make(chan struct{})}
	l.threads = make([]*thread, p.Threads)
	eachThread(p.Threads, func(i int) {
		th := &thread{
			load: l, id: i, local: p.order(i, false), remote: p.order(i, true), landed: make([]bool, p.blocks()),
			reqs: make([]transport.Request, p.Batch), flights: make([]flight, p.Depth), ended: make(chan int, p.Depth),
		}
		for f := range th.flights {
			th.idle = append(th.idle, f)
		}
		l.threads[i] = th
	})
	return l
}

// start runs the threads until halt, a failed batch, the end of ctx or that of
// their iterations. wait returns when nothing is under way any more.
func (l *load) start(ctx context.Context) {
	for _, th := range l.threads {
		l.wg.Go(func() { th.run(ctx) })
	}
}

func (l *load) wait() { l.wg.Wait() }

// again lets the threads of a load that has ended run once more.
func (l *load) again(iters int) {
	l.halt.Store(false)
	l.iters = iters
	for _, th := range l.threads {
		th.batches = 0
	}
}

func (l *load) fail() { l.once.Do(func() { l.halt.Store(true); close(l.failed) }) }

func (th *thread) run(ctx context.Context) {
	l := th.load
	done := ctx.Done()
	for {
		for len(th.idle) > 0 && th.room() && !l.halt.Load() && (l.iters == 0 || th.batches < l.iters) && !th.lapped() {
			th.submit()
		}
		if len(th.idle) == len(th.flights) {
			return
		}
		select {
		case i := <-th.ended:
			th.collect(i, ctx.Err() != nil)
		case <-done:
			done = nil
			l.halt.Store(true)
			for i := range th.flights {
				if b := th.flights[i].batch; b != nil {
					b.Cancel()
				}
			}
		}
	}
}

// room says that a thread of a point of Config.steady may have another batch under way; one it
// always may.
func (th *thread) room() bool {
	p, under := th.load.plan, int64(len(th.flights)-len(th.idle))
	return th.load.meter == nil || under*p.Block*int64(p.Batch*p.Threads) <= th.load.window.Load()
}

// lapped says that the next batch, of a point of rounds, has a block that is under
// way still, of the round before: which of the two is applied last must not be left
// to chance.
func (th *thread) lapped() bool {
	if !th.load.plan.Rounds {
		return false
	}
	for i := range th.flights {
		if f := &th.flights[i]; f.batch != nil && th.next+len(th.reqs) > f.first+len(th.local) {
			return true
		}
	}
	return false
}

func (th *thread) submit() {
	l := th.load
	i := th.idle[len(th.idle)-1]
	th.idle = th.idle[:len(th.idle)-1]
	f := &th.flights[i]
	f.first = th.next
	for k := range th.reqs {
		at := (f.first + k) % len(th.local)
		source := at
		if l.plan.Rounds {
			_, source = l.plan.sourceOf(f.first + k)
		}
		from := l.plan.offset(th.id, th.local[source])
		th.reqs[k] = transport.Request{Op: l.plan.Op, Local: l.mem[from : from+l.plan.Block], Offset: l.plan.offset(th.id, th.remote[at])}
	}
	th.next += len(th.reqs)
	th.batches++
	by := l.initiators[th.id%len(l.initiators)]
	opt := transport.BatchOptions{Timeout: l.timeout, HasImm: l.plan.imm, Imm: uint64(th.batches), OnDone: func(*transport.Batch) { th.ended <- i }}
	f.began = l.clk.Now()
	f.batch = by.engine.Submit(by.target, th.reqs, opt)
	f.post = l.clk.Now() - f.began
}

func (th *thread) collect(i int, canceled bool) {
	l, f := th.load, &th.flights[i]
	b := f.batch
	f.batch = nil
	back := l.clk.Now()
	th.idle = append(th.idle, i)
	if err := b.Err(); err != nil {
		if l.plan.Rounds {
			for k := range th.reqs {
				th.unsure = append(th.unsure, (f.first+k)%len(th.landed))
			}
		}
		if !canceled || !errors.Is(err, context.Canceled) {
			th.errors++
			th.err = cmp.Or(th.err, err)
			l.fail()
		}
		return
	}
	for k := range th.reqs {
		th.landed[(f.first+k)%len(th.landed)] = true
	}
	l.moved.Add(b.Bytes())
	at := b.Completed()
	th.last = max(th.last, at)
	open, shut := time.Duration(l.open.Load()), time.Duration(l.shut.Load())
	if open == 0 || at < open || shut != 0 && at >= shut {
		return
	}
	c := &th.count
	c.batches++
	c.blocks += int64(len(th.reqs))
	c.bytes += b.Bytes()
	if l.plan.alone {
		c.latency.Add(back - f.began)
	} else {
		c.latency.Add(at - b.Posted())
	}
	c.post.Add(f.post)
	slot := int((at - open) / l.slot)
	for len(c.slots) <= slot {
		c.slots = append(c.slots, 0)
	}
	c.slots[slot] += b.Bytes()
}

// sum is the tally of all threads, which have ended.
func (l *load) sum() (sum tally) {
	for _, th := range l.threads {
		c := &th.count
		sum.batches += c.batches
		sum.blocks += c.blocks
		sum.bytes += c.bytes
		sum.latency.Merge(&c.latency)
		sum.post.Merge(&c.post)
		for i, n := range c.slots {
			if i == len(sum.slots) {
				sum.slots = append(sum.slots, 0)
			}
			sum.slots[i] += n
		}
	}
	return sum
}

// errors counts the batches that failed, and returns the first error.
func (l *load) errors() (n int, first error) {
	for _, th := range l.threads {
		n += th.errors
		first = cmp.Or(first, th.err)
	}
	return n, first
}

// last is when the last batch completed.
func (l *load) last() (at time.Duration) {
	for _, th := range l.threads {
		at = max(at, th.last)
	}
	return at
}

// landings are the blocks that were transferred. A block whose batch failed after
// it had landed once before has the same bytes still.
func (l *load) landings() []landing {
	all := make([]landing, len(l.threads))
	for i, th := range l.threads {
		if l.plan.Rounds {
			all[i] = landing{Next: th.next, Lost: th.unsure}
			continue
		}
		all[i].Blocks = min(th.next, len(th.landed))
		for k, ok := range th.landed[:all[i].Blocks] {
			if !ok {
				all[i].Lost = append(all[i].Lost, k)
			}
		}
	}
	return all
}
