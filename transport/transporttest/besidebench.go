package transporttest

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"kvferry/transport"
)

// Beside sets 4 KiB every millisecond, a READ or a WRITE with an immediate, beside four batches of 16 MiB of
// the same direction, which are under way to the same target. The target is another process.
type Beside struct {
	Rail     func() (transport.Rail, error)
	Allocate transport.Allocator
}

// RoleBeside is the target's: TestMain calls Beside.Target then.
const RoleBeside = "beside"

const (
	besideBulk  = 16 << 20 // bytes of a batch
	besideDepth = 4        // batches
	besideLen   = 1 << 30  // bytes of either end
	besideSmall = 4 << 10
	besideTurn  = 500 * time.Millisecond
	besideEvery = time.Millisecond
)

func (x Beside) open() (*transport.Engine, *transport.Segment, error) {
	r, err := x.Rail()
	if err != nil {
		return nil, nil, err
	}
	e, err := transport.New(transport.Config{Rails: []transport.Rail{r}})
	if err != nil {
		return nil, nil, err
	}
	mem, _, err := x.Allocate(besideLen)
	if err != nil {
		return nil, nil, err
	}
	for at := 0; at < len(mem); at += 4 << 10 {
		mem[at] = byte(at>>12) | 1 // no page is the kernel's zero page
	}
	s, err := e.Register("beside", mem, "cpu:0")
	return e, s, err
}

// Target is the other process: it says where its memory is, and ends when nobody listens any more.
func (x Beside) Target() {
	_, s, err := x.open()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(s.Info())
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Benchmark reports the latency of the small ones alone and beside bulk, in turns of half a second,
// and bulk's rate: x_bulk is the median of the turns' ratios, beside over alone.
func (x Beside) Benchmark(b *testing.B) {
	b.Run("write", func(b *testing.B) { x.benchmark(b, transport.Write) })
	b.Run("read", func(b *testing.B) { x.benchmark(b, transport.Read) })
}

func (x Beside) benchmark(b *testing.B, op transport.Op) {
	_, _, out := StartRole(b, RoleBeside)
	e, local, err := x.open()
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	var info transport.SegmentInfo
	if err := json.NewDecoder(out).Decode(&info); err != nil {
		b.Fatal(err)
	}
	target, err := e.Open(info)
	if err != nil {
		b.Fatal(err)
	}
	w := &besideRun{b: b, op: op, e: e, mem: local.Bytes(), target: target}
	w.bulk()
	var alone, beside, rates, ratios []float64
	for b.Loop() {
		rest := make(chan struct{})
		time.AfterFunc(besideTurn, func() { close(rest) })
		alone = append(alone, w.small(rest)...)
		rate := w.bulk()
		over, small := make(chan struct{}), make(chan []float64)
		go func() { small <- w.small(over) }()
		with := w.bulk()
		close(over)
		beside = append(beside, <-small...)
		rates, ratios = append(rates, rate), append(ratios, with/rate)
	}
	at := func(v []float64, per int) float64 { slices.Sort(v); return v[len(v)*per/1000] }
	b.ReportMetric(at(alone, 500), "alone-p50-us")
	b.ReportMetric(at(alone, 990), "alone-p99-us")
	b.ReportMetric(at(beside, 500), "p50-us")
	b.ReportMetric(at(beside, 990), "p99-us")
	b.ReportMetric(at(beside, 999), "p99.9-us")
	b.ReportMetric(at(rates, 500), "bulk-GB/s")
	b.ReportMetric(at(ratios, 500), "x_bulk")
	b.ReportMetric(0, "ns/op")
}

type besideRun struct {
	b      *testing.B
	op     transport.Op
	e      *transport.Engine
	mem    []byte
	target *transport.Target
}

func (w *besideRun) wait(batch *transport.Batch) {
	<-batch.Done()
	if err := batch.Err(); err != nil {
		w.b.Error(err)
	}
}

// bulk moves batches for a turn, and returns GB/s.
func (w *besideRun) bulk() float64 {
	var moved int
	var flight []*transport.Batch
	start := time.Now()
	for i := 0; time.Since(start) < besideTurn || len(flight) > 0; i++ {
		if len(flight) == besideDepth || time.Since(start) >= besideTurn {
			w.wait(flight[0])
			moved += besideBulk
			flight = flight[1:]
			continue
		}
		at := i % (besideLen/besideBulk - 1) * besideBulk
		reqs := make([]transport.Request, besideBulk>>20)
		for k := range reqs {
			reqs[k] = transport.Request{Op: w.op, Local: w.mem[at+k<<20:][:1<<20], Offset: int64(at + k<<20)}
		}
		flight = append(flight, w.e.Submit(w.target, reqs, transport.BatchOptions{}))
	}
	return float64(moved) / time.Since(start).Seconds() / 1e9
}

// small returns how long each took, in microseconds.
func (w *besideRun) small(over <-chan struct{}) (took []float64) {
	tick := time.NewTicker(besideEvery)
	defer tick.Stop()
	const at = besideLen - besideSmall
	req := []transport.Request{{Op: w.op, Local: w.mem[at:], Offset: at}}
	for {
		select {
		case <-over:
			return took
		case <-tick.C:
		}
		t0 := time.Now()
		w.wait(w.e.Submit(w.target, req, transport.BatchOptions{HasImm: w.op == transport.Write}))
		took = append(took, float64(time.Since(t0).Nanoseconds())/1e3)
	}
}
