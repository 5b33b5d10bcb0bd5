package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/transport"
)

// fairness is the least over the most, and Jain's index: (sum x)^2 / (n sum x^2).
func fairness(shares []int64) (least, jain float64) {
	low, high, sum, squares := shares[0], shares[0], 0.0, 0.0
	for _, x := range shares {
		low, high = min(low, x), max(high, x)
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	return float64(low) / float64(high), sum * sum / (float64(len(shares)) * squares)
}

// BenchmarkManyToOne has initiators, each an engine of its own, move 64 KiB after 64 KiB to or from one
// target, and says how they share it in a second, and in four. What one has more than another is
// chance, which wakes whom first: it evens out. Medians of 3, both ends in one process on 2 cores:
//
//	              GB/s    least/most in 1 s    in 4 s    Jain's index in 1 s
//	write, 16     3.0     0.85                 0.94      0.998
//	write, 256    2.6     0.88                 0.94      1.000
//	read, 16      2.8     0.86                 0.94      0.999
//	read, 256     2.2     0.81                 0.94      0.999
func BenchmarkManyToOne(b *testing.B) {
	const size = 64 << 10
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, n := range []int{16, 256} {
			b.Run(fmt.Sprintf("%v/%d", op, n), func(b *testing.B) {
				enoughFiles(b, uint64(4*n+200))
				owner, err := transport.New(transport.Config{Rails: []transport.Rail{newRail(b, "127.0.0.1:0")}})
				if err != nil {
					b.Fatal(err)
				}
				defer owner.Close()
				mem := slabs()
				remote, err := owner.Register("remote", mem[1], "cpu:0")
				if err != nil {
					b.Fatal(err)
				}
				counts := make([]atomic.Int64, n)
				var stop atomic.Bool
				var running sync.WaitGroup
				for i := range n {
					e, err := transport.New(transport.Config{Rails: []transport.Rail{newRail(b, fmt.Sprintf("127.0.0.%d:0", 2+i/128))}})
					if err != nil {
						b.Fatal(err)
					}
					defer e.Close()
					local, err := e.RegisterLocal("local", mem[0], "cpu:0")
					if err != nil {
						b.Fatal(err)
					}
					tgt, err := e.Open(remote.Info())
					if err != nil {
						b.Fatal(err)
					}
					at := newBlocks(size, uint64(i))
					running.Add(1)
					var next func(*transport.Batch)
					next = func(done *transport.Batch) {
						if done != nil {
							if done.Err() != nil {
								b.Error(done.Err())
							}
							counts[i].Add(size)
						}
						if stop.Load() || b.Failed() {
							running.Done()
							return
						}
						o := at.offset()
						e.Submit(tgt, []transport.Request{{Op: op, Local: local.Bytes()[o : o+size], Offset: int64(o)}}, transport.BatchOptions{OnDone: next})
					}
					next(nil)
				}
				shares := func() []int64 {
					s := make([]int64, n)
					for i := range counts {
						s[i] = counts[i].Load()
					}
					return s
				}
				over := func(d time.Duration) (least, jain, rate float64) {
					before := shares()
					t0 := time.Now()
					<-time.After(d)
					after := shares()
					took := time.Since(t0).Seconds()
					for i := range after {
						after[i] -= before[i]
						rate += float64(after[i]) / took
					}
					least, jain = fairness(after)
					return least, jain, rate
				}
				over(500 * time.Millisecond)
				var seconds, fours, jains, rates []float64
				for b.Loop() {
					l, j, r := over(time.Second)
					seconds, jains, rates = append(seconds, l), append(jains, j), append(rates, r/1e9)
					l, _, _ = over(4 * time.Second)
					fours = append(fours, l)
				}
				stop.Store(true)
				running.Wait()
				b.ReportMetric(median(rates), "GB/s")
				b.ReportMetric(median(seconds), "min/max-1s")
				b.ReportMetric(median(fours), "min/max-4s")
				b.ReportMetric(median(jains), "jain-1s")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
