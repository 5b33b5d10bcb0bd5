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
	const (
		slice = 64 << 10
		open  = 256 << 20 // in all windows
		batch = 128
		turn  = 128 << 20
	)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, n := range []int{1, 16, 625} {
			b.Run(fmt.Sprintf("%v/%d_ranges", op, n), func(b *testing.B) {
				engine := func() *transport.Engine {
					e, err := transport.New(transport.Config{Rails: []transport.Rail{make(b)}})
					if err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { e.Close() })
					return e
				}
				ini, owner := engine(), engine()
				// Ranges of as many slices each, a slice apart.
				each := open / slice / n
				var ranges []transport.Range
				var offsets []int64
				for i := range n {
					at := int64(i * (each + 1) * slice)
					ranges = append(ranges, transport.Range{Offset: at, Length: int64(each * slice)})
					for k := range each {
						offsets = append(offsets, at+int64(k*slice))
					}
				}
				mem := func() []byte {
					m := bytesOf(n * (each + 1) * slice)
					for i := 0; i < len(m); i += 4096 {
						m[i] = byte(i >> 12)
					}
					return m
				}
				local, err := ini.RegisterLocal("local", mem(), "cpu:0")
				if err != nil {
					b.Fatal(err)
				}
				remote, err := owner.Register("remote", mem(), "cpu:0")
				if err != nil {
					b.Fatal(err)
				}
				w, err := remote.Window("window", op, ranges)
				if err != nil {
					b.Fatal(err)
				}
				var targets [2]*transport.Target
				for i, info := range []transport.SegmentInfo{remote.Info(), w.Info()} {
					if targets[i], err = ini.Open(info); err != nil {
						b.Fatal(err)
					}
				}
				rand.New(rand.NewPCG(1, 2)).Shuffle(len(offsets), func(i, j int) { offsets[i], offsets[j] = offsets[j], offsets[i] })
				next := 0
				move := func(t *transport.Target) (took, used float64) {
					start, before := time.Now(), cpu()
					var flight []*transport.Batch
					for range turn / slice / batch {
						var reqs []transport.Request
						for range batch {
							at := offsets[next%len(offsets)]
							next++
							reqs = append(reqs, transport.Request{Op: op, Local: local.Bytes()[at : at+slice], Offset: at})
						}
						flight = append(flight, ini.Submit(t, reqs, transport.BatchOptions{}))
						if len(flight) == 4 {
							<-flight[0].Done()
							flight = flight[1:]
						}
					}
					for _, f := range flight {
						<-f.Done()
						if f.Err() != nil {
							b.Fatal(f.Err())
						}
					}
					return time.Since(start).Seconds(), cpu() - before
				}
				for _, t := range targets {
					move(t)
				}
				var times, cpus []float64
				for i := 0; b.Loop(); i++ {
					var took, used [2]float64
					for k := range 2 { // who goes first changes
						which := (i + k) % 2
						took[which], used[which] = move(targets[which])
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
