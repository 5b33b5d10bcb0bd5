package nics

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/bench/rail"
	"kvferry/bench/stats"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// incastEnv names the side of the incast that a process of this test's binary is, "target" or
// "load", in place of the tests. Its argument is an incastLoad in JSON.
const incastEnv = "KVFERRY_INCAST"

func TestMain(m *testing.M) {
	side := os.Getenv(incastEnv)
	if side == "" {
		os.Exit(m.Run())
	}
	var l incastLoad
	err := json.Unmarshal([]byte(os.Args[1]), &l)
	switch {
	case err != nil:
	case side == "target":
		err = l.serve(context.Background(), os.Stdout) // until SIGTERM
	default:
		var s *incastSample
		if s, err = l.run(context.Background()); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(s)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// An incastLoad has initiators move blocks to or from one target at once, each with an engine and
// an address of its own, and one more, the probe, ask for something small now and then:
//
//	initiator 1   blocks ──┐
//	...                    ├──► one NIC ──► target
//	initiator n   blocks ──┤
//	probe         4 KiB  ──┘
//
// With READs the bytes go the other way, and meet where the target sends them.
type incastLoad struct {
	At       string                // address of the target
	Target   transport.SegmentInfo // its memory
	Op       transport.Op
	From     []string      // address of each initiator, and that of the probe at the end
	Warmup   time.Duration // before Duration, for windows to grow
	Duration time.Duration // measured
}

// An incastSample is what initiators and probe got.
type incastSample struct {
	Seconds float64
	*stats.Fairness
	Probes       uint64
	P50MS, P99MS float64 // of the probe, from Submit until it is known that it has arrived
}

const (
	incastPart  = 4 << 20 // of the target's memory, for each initiator and the probe
	incastBlock = 256 << 10
	incastDepth = 4       // blocks under way: a megabyte, as one that fetches a prompt's KV has
	probeBytes  = 4 << 10 // urgent: alone on its connection
	probeEvery  = 5 * time.Millisecond
	// incastPatience bounds how long a block may take: the least share of a NIC is far more.
	incastPatience = 30 * time.Second
)

// incastMemory returns a part of memory for each initiator and the probe. Each page has been written
// to, so that none is the kernel's zero page.
func (l *incastLoad) incastMemory() (mem []byte, free func() error, err error) {
	mem, free, err = transport.MapMemory(len(l.From) * incastPart)
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	return mem, free, err
}

// serve is the target. It prints a line with its memory's [transport.SegmentInfo] and returns when
// ctx ends.
func (l *incastLoad) serve(ctx context.Context, to io.Writer) (err error) {
	mem, free, err := l.incastMemory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	e, err := incastEngine(l.At)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	s, err := e.Register("target", mem, "cpu:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(to).Encode(s.Info()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// incastEngine returns an engine with one rail, at an address.
func incastEngine(address string) (*transport.Engine, error) {
	r, err := rails.Open(address+":0", rails.Options{})
	if err != nil {
		return nil, err
	}
	return transport.New(transport.Config{Rails: []transport.Rail{r}}) // which closes the rail if it fails
}

// An initiator has an engine and a part of both memories.
type initiator struct {
	engine *transport.Engine
	target *transport.Target
	mem    []byte
	offset int64 // of its part at the target
	moved  atomic.Int64
}

// run loads the target and measures. The first block that fails ends it with an error.
func (l *incastLoad) run(ctx context.Context) (s *incastSample, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	mem, free, err := l.incastMemory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, free()) }() // after the engines are closed
	all := make([]*initiator, len(l.From))
	for k, address := range l.From {
		i := &initiator{mem: mem[k*incastPart : (k+1)*incastPart], offset: int64(k) * incastPart}
		if i.engine, err = incastEngine(address); err != nil {
			return nil, fmt.Errorf("initiator at %s: %w", address, err)
		}
		defer func() { err = errors.Join(err, i.engine.Close()) }()
		if _, err = i.engine.RegisterLocal("initiator", i.mem, "cpu:0"); err == nil {
			i.target, err = i.engine.Open(l.Target)
		}
		if err != nil {
			return nil, fmt.Errorf("initiator at %s: %w", address, err)
		}
		all[k] = i
	}
	many, probe := all[:len(all)-1], all[len(all)-1]
	var running sync.WaitGroup
	defer running.Wait()
	defer fail(nil)
	for _, i := range many {
		for d := range incastDepth {
			running.Go(func() { i.repeat(ctx, fail, l.Op, d*incastBlock) })
		}
	}
	rail.Sleep(ctx, nil, l.Warmup)
	bytes := make([]int64, len(many))
	began := time.Now() // before anything counts: however late this goroutine goes on, the rate is not above what it was
	for k, i := range many {
		bytes[k] = -i.moved.Load()
	}
	took := &stats.Histogram{}
	for end := began.Add(l.Duration); time.Now().Before(end) && ctx.Err() == nil; rail.Sleep(ctx, nil, probeEvery) {
		asked := time.Now()
		if err := probe.move(ctx, l.Op, 0, probeBytes); err != nil {
			return nil, errors.Join(context.Cause(ctx), err)
		}
		took.Add(time.Since(asked))
	}
	for k, i := range many {
		bytes[k] += i.moved.Load()
	}
	return &incastSample{
		Seconds: time.Since(began).Seconds(), Fairness: stats.Shares(bytes), Probes: took.Count(),
		P50MS: took.Percentile(50).Seconds() * 1e3, P99MS: took.Percentile(99).Seconds() * 1e3,
	}, context.Cause(ctx)
}

// move moves n bytes of the initiator's memory, from offset at on, and returns when they have arrived.
func (i *initiator) move(ctx context.Context, op transport.Op, at, n int) error {
	b := i.engine.Submit(i.target, []transport.Request{{Op: op, Local: i.mem[at : at+n], Offset: i.offset + int64(at)}}, transport.BatchOptions{Timeout: incastPatience})
	select {
	case <-b.Done():
		return b.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// repeat moves one block after the other until ctx is done.
func (i *initiator) repeat(ctx context.Context, fail func(error), op transport.Op, at int) {
	for ctx.Err() == nil {
		if err := i.move(ctx, op, at, incastBlock); err != nil {
			fail(err) // without effect once ctx is done
			return
		}
		i.moved.Add(incastBlock)
	}
}

// TestIncastLoad: all initiators move something, from addresses of their own, and so does the probe;
// what keeps one from its blocks ends the run.
func TestIncastLoad(t *testing.T) {
	l := incastLoad{At: "127.0.0.1", From: []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}, Warmup: time.Millisecond, Duration: 50 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	over := make(chan error, 1)
	go func() {
		err := l.serve(ctx, in)
		in.CloseWithError(err)
		over <- err
	}()
	defer func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	load := l
	if err = errors.Join(err, json.Unmarshal(line, &load.Target)); err != nil {
		t.Fatal(err)
	}
	for _, load.Op = range []transport.Op{transport.Write, transport.Read} {
		for {
			s, err := load.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Bytes) != 3 || s.Seconds < load.Duration.Seconds() || s.Probes == 0 || s.P50MS <= 0 || s.P99MS < s.P50MS {
				t.Fatalf("%+v", s)
			}
			if s.MinMax > 0 {
				break
			}
			if load.Duration *= 2; load.Duration > time.Minute { // a busy machine takes longer
				t.Fatalf("somebody has moved nothing: %v", s.Bytes)
			}
		}
	}
	load.Warmup, load.Duration = time.Hour, time.Hour
	bad := load
	bad.Target.Rails = slices.Clone(load.Target.Rails)
	bad.Target.Rails[0].Key++
	if s, err := bad.run(t.Context()); err == nil {
		t.Errorf("%+v with a key that opens nothing", s)
	}
	bad = load
	bad.From = []string{"192.0.2.1", "127.0.0.4"} // of nobody (RFC 5737)
	if s, err := bad.run(t.Context()); err == nil {
		t.Errorf("%+v from an address that is not ours", s)
	}
	ctx, stop := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, io.ErrUnexpectedEOF)
	defer stop()
	if s, err := load.run(ctx); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%+v, %v", s, err)
	}
}
