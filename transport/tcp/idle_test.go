package tcp

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"kvferry/transport"
)

// BenchmarkAfterIdle is what serving does: a prompt's blocks now, the next
// prompt's after a pause.
func BenchmarkAfterIdle(b *testing.B) {
	for _, c := range []struct {
		op          transport.Op
		size, batch int
	}{{transport.Read, 16 << 10, 448}, {transport.Write, 16 << 10, 448}, {transport.Write, 16 << 10, 32}, {transport.Read, 16 << 10, 32}} {
		for _, idle := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
			b.Run(fmt.Sprintf("%v/%dKiB_x%d/idle=%v", c.op, c.size>>10, c.batch, idle), func(b *testing.B) {
				ini, local, tgt, stop := newEngines(b)
				defer stop()
				from, to := newBlocks(c.size, 1), newBlocks(c.size, 2)
				var lat []float64
				for b.Loop() {
					reqs := make([]transport.Request, c.batch)
					for i := range reqs {
						at := from.offset()
						reqs[i] = transport.Request{Op: c.op, Local: local.Bytes()[at : at+c.size], Offset: int64(to.offset())}
					}
					t0 := time.Now()
					batch := ini.Submit(tgt, reqs, transport.BatchOptions{})
					<-batch.Done()
					if err := batch.Err(); err != nil {
						b.Fatal(err)
					}
					d := time.Since(t0)
					lat = append(lat, float64(d.Nanoseconds())/1e6)
					if d > 20*time.Millisecond {
						b.Logf("batch %d took %v", len(lat), d)
					}
					<-time.After(idle)
				}
				slices.Sort(lat)
				b.ReportMetric(lat[len(lat)/2], "p50-ms")
				b.ReportMetric(lat[len(lat)*99/100], "p99-ms")
				b.ReportMetric(lat[len(lat)-1], "max-ms")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
