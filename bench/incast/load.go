package incast

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/stats"
	"kvferry/transport"
)

// A Load is what the initiators do.
type Load struct {
	Target   transport.SegmentInfo `json:"target"`
	Op       transport.Op          `json:"op"`
	From     []string              `json:"from"`    // address of each initiator
	Probe    string                `json:"probe"`   // address of the probe
	Options  string                `json:"options"` // of the rails, "congestion=bbr"
	Block    int                   `json:"block"`   // bytes of a batch of an initiator
	Depth    int                   `json:"depth"`   // batches that each has under way
	Warmup   time.Duration         `json:"warmup"`
	Duration time.Duration         `json:"duration"` // measured, after the warm-up
}

// A Sample is what came of it.
type Sample struct {
	Seconds float64 `json:"seconds"`
	*stats.Fairness
	Probes uint64  `json:"probes"`
	P50MS  float64 `json:"probe_p50_ms"` // from Submit until it is known that it has arrived
	P99MS  float64 `json:"probe_p99_ms"`
}

const (
	probeBytes = 4 << 10 // urgent: alone on its connection
	probeEvery = 5 * time.Millisecond
)

// An initiator has an engine and a part of both memories.
type initiator struct {
	engine *transport.Engine
	target *transport.Target
	mem    []byte
	offset int64 // of its part at the target
	moved  atomic.Int64
}

// Run runs a load and measures it. What it made is gone when it returns.
func (l *Load) Run(ctx context.Context) (s *Sample, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	mem, free, err := transport.MapMemory((len(l.From) + 1) * each)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, free()) }() // after the engines are closed
	touched(mem)
	var all []*initiator
	defer func() {
		for _, i := range all {
			err = errors.Join(err, i.engine.Close())
		}
	}()
	for k, address := range append(l.From[:len(l.From):len(l.From)], l.Probe) {
		i, err := l.join(address, mem[k*each:(k+1)*each], int64(k*each))
		if err != nil {
			return nil, fmt.Errorf("initiator at %s: %w", address, err)
		}
		all = append(all, i)
	}
	many, probe := all[:len(l.From)], all[len(l.From)]
	var running sync.WaitGroup
	defer running.Wait()
	defer fail(nil)
	for _, i := range many {
		for d := range l.Depth {
			running.Go(func() { i.repeat(ctx, fail, l.Op, l.Block, d) })
		}
	}
	if err := wait(ctx, l.Warmup); err != nil {
		return nil, err
	}
	bytes := make([]int64, len(many))
	began := time.Now() // before anything counts: however late this goroutine goes on, the rate is not above what it was
	for k, i := range many {
		bytes[k] = -i.moved.Load()
	}
	took, err := probe.probe(ctx, l.Op, l.Duration)
	if err != nil {
		return nil, err
	}
	for k, i := range many {
		bytes[k] += i.moved.Load()
	}
	return &Sample{
		Seconds: time.Since(began).Seconds(), Fairness: stats.Shares(bytes), Probes: took.Count(),
		P50MS: took.Percentile(50).Seconds() * 1e3, P99MS: took.Percentile(99).Seconds() * 1e3,
	}, context.Cause(ctx)
}

// join makes an initiator.
func (l *Load) join(address string, mem []byte, offset int64) (i *initiator, err error) {
	i = &initiator{mem: mem, offset: offset}
	if i.engine, err = open(address, l.Options); err != nil {
		return nil, err
	}
	if _, err = i.engine.RegisterLocal("initiator", mem, "cpu:0"); err == nil {
		i.target, err = i.engine.Open(l.Target)
	}
	if err != nil {
		return nil, errors.Join(err, i.engine.Close())
	}
	return i, nil
}

// move moves so many bytes at a place of its memory and returns when they have arrived.
func (i *initiator) move(ctx context.Context, op transport.Op, at, bytes int) error {
	b := i.engine.Submit(i.target, []transport.Request{{Op: op, Local: i.mem[at : at+bytes], Offset: i.offset + int64(at)}}, transport.BatchOptions{Timeout: patience})
	select {
	case <-b.Done():
		return b.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patience is how long a batch may take: the least share of a NIC is far more.
const patience = 30 * time.Second

// repeat moves block after block until ctx is done.
func (i *initiator) repeat(ctx context.Context, fail func(error), op transport.Op, block, place int) {
	for ctx.Err() == nil {
		err := i.move(ctx, op, place*block, block)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			fail(err)
			return
		}
		i.moved.Add(int64(block))
	}
}

// probe asks for something small every probeEvery, for so long, and says how long each took.
func (i *initiator) probe(ctx context.Context, op transport.Op, whole time.Duration) (took *stats.Histogram, err error) {
	took = &stats.Histogram{}
	for end := time.Now().Add(whole); time.Now().Before(end); {
		began := time.Now()
		if err := i.move(ctx, op, 0, probeBytes); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		took.Add(time.Since(began))
		if err := wait(ctx, probeEvery); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// wait returns after d, or with why ctx is done.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
