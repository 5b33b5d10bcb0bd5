package transporttest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kvferry/transport"
)

// BenchmarkWindows sets keys of windows of 1, 16 and 625 scattered ranges beside the
// key of the whole region: the same 64 KiB slices in the same random order, in turns
// of 128 MiB. It reports the medians of the turns' ratios: x_time and x_cpu are what a
// slice takes through the window, of what it takes with the whole region's key. cpu
// is the CPU time of the process, in seconds.
func BenchmarkWindows(b *testing.B, make Factory, cpu func() float64) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, n := range []int{1, 16, 625} {
			b.Run(fmt.Sprintf("%v/%d_ranges", op, n), func(b *testing.B) {
				w := newWindowBench(b, make, op, n)
				for which := range 2 {
					w.move(which)
				}
				var times, cpus []float64
				for i := 0; b.Loop(); i++ {
					var took, used [2]float64
					for k := range 2 { // who goes first changes
						which := (i + k) % 2
						start, before := time.Now(), cpu()
						w.move(which)
						took[which], used[which] = time.Since(start).Seconds(), cpu()-before
					}
					times, cpus = append(times, took[1]/took[0]), append(cpus, used[1]/used[0])
				}
				slices.Sort(times)
				slices.Sort(cpus)
				b.ReportMetric(times[len(times)/2], "x_time")
				b.ReportMetric(cpus[len(cpus)/2], "x_cpu")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

const (
	benchSlice = 64 << 10
	benchOpen  = 256 << 20 // in all windows
	benchBatch = 128       // slices
	benchTurn  = 128 << 20
)

// A windowBench is two engines, and the same memory opened twice.
type windowBench struct {
	b       *testing.B
	op      transport.Op
	ini     *transport.Engine
	local   []byte
	targets [2]*transport.Target // the whole segment, a window of n ranges
	offsets []int64              // of slices that the window opens, shuffled
	next    int
}

func newWindowBench(b *testing.B, make Factory, op transport.Op, n int) *windowBench {
	engine := func() *transport.Engine {
		e, err := transport.New(transport.Config{Rails: []transport.Rail{make(b)}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { e.Close() })
		return e
	}
	w := &windowBench{b: b, op: op, ini: engine()}
	owner := engine()
	// Ranges of as many slices each, a slice apart.
	each := benchOpen / benchSlice / n
	var ranges []transport.Range
	for i := range n {
		at := int64(i * (each + 1) * benchSlice)
		ranges = append(ranges, transport.Range{Offset: at, Length: int64(each * benchSlice)})
		for k := range each {
			w.offsets = append(w.offsets, at+int64(k*benchSlice))
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(w.offsets), func(i, j int) { w.offsets[i], w.offsets[j] = w.offsets[j], w.offsets[i] })
	mem := func() []byte {
		m := bytesOf(n * (each + 1) * benchSlice)
		for i := 0; i < len(m); i += 4096 {
			m[i] = byte(i >> 12)
		}
		return m
	}
	w.local = mem()
	if _, err := w.ini.RegisterLocal("local", w.local, "cpu:0"); err != nil {
		b.Fatal(err)
	}
	remote, err := owner.Register("remote", mem(), "cpu:0")
	if err != nil {
		b.Fatal(err)
	}
	window, err := remote.Window("window", op, ranges)
	if err != nil {
		b.Fatal(err)
	}
	for i, info := range []transport.SegmentInfo{remote.Info(), window.Info()} {
		if w.targets[i], err = w.ini.Open(info); err != nil {
			b.Fatal(err)
		}
	}
	return w
}

// move carries a turn's bytes to or from one of the targets, four batches at a time.
func (w *windowBench) move(which int) {
	var flight []*transport.Batch
	end := func(b *transport.Batch) {
		if <-b.Done(); b.Err() != nil {
			w.b.Fatal(b.Err())
		}
	}
	for range benchTurn / benchSlice / benchBatch {
		var reqs []transport.Request
		for range benchBatch {
			at := w.offsets[w.next%len(w.offsets)]
			w.next++
			reqs = append(reqs, transport.Request{Op: w.op, Local: w.local[at : at+benchSlice], Offset: at})
		}
		flight = append(flight, w.ini.Submit(w.targets[which], reqs, transport.BatchOptions{}))
		if len(flight) == 4 {
			end(flight[0])
			flight = flight[1:]
		}
	}
	for _, b := range flight {
		end(b)
	}
}
