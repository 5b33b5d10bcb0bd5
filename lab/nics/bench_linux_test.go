package nics

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// frameShare is TCP's payload of a frame that tbf counts, at an MTU of 1500: 1448
// of 1514 bytes.
const frameShare = 1448.0 / 1514

// BenchmarkLinks: how near links come to their rates, with a plain TCP sender and
// cubic on each, one second an iteration. "%ideal" is of the rate's payload, of the
// slowest link; "CPU%" is of a core, of senders, receivers and links.
func BenchmarkLinks(b *testing.B) {
	for _, rate := range []int64{5e8, 2e9, 4e9} {
		for _, links := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("rate=%gGbit/links=%d", float64(rate)/1e9, links), func(b *testing.B) {
				var rates []int64
				for range links {
					rates = append(rates, rate)
				}
				l := start(b, Config{Rates: rates})
				var streams []*stream
				for nic := range rates {
					streams = append(streams, send(b, l, Address(1, nic), Address(2, nic), false))
				}
				<-time.After(500 * time.Millisecond)
				from := make([]int64, links)
				for i, s := range streams {
					from[i] = s.received.Load()
				}
				began, cpu := time.Now(), processTime(b)
				for b.Loop() {
					<-time.After(time.Second)
				}
				took := time.Since(began).Seconds()
				var all, slowest float64
				for i, s := range streams {
					got := float64(s.received.Load()-from[i]) * 8 / took
					all += got
					if share := got / (float64(rate) * frameShare); i == 0 || share < slowest {
						slowest = share
					}
				}
				b.ReportMetric(all/1e9, "Gbit/s")
				b.ReportMetric(100*slowest, "%ideal")
				b.ReportMetric(100*(processTime(b)-cpu).Seconds()/took, "CPU%")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkManagement: a connection over the link without a rate, which is what
// the path through the wires takes at most.
func BenchmarkManagement(b *testing.B) {
	l := start(b, Config{Rates: []int64{1e9}})
	s := send(b, l, ManagementAddress(1), ManagementAddress(2), false)
	s.moves(b, "the first megabyte")
	from, began := s.received.Load(), time.Now()
	for b.Loop() {
		<-time.After(time.Second)
	}
	b.ReportMetric(float64(s.received.Load()-from)*8/1e9/time.Since(began).Seconds(), "Gbit/s")
	b.ReportMetric(0, "ns/op")
}

func processTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
