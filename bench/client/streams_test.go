package client

import (
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/bench/stats"
	"kvferry/load"
)

// The flags of BenchmarkStreams.
var (
	streamsURL = flag.String("streams-url", "", "server that BenchmarkStreams asks")
	streamsOf  = flag.String("streams", "1000,2000,5000,10000", "how many streams are to be open at once")
	streamsNet = flag.Bool("streams-net-http", false, "by net/http, for comparison")
	streamsFor = flag.Duration("streams-for", 20*time.Second, "how long")
)

// BenchmarkStreams is what many streams cost: arrivals at a rate so that, with answers of 200
// tokens at 10 a second, so many are open at once; each as long as an answer takes, and then
// for -streams-for. It is to run against a server in another process, on other CPUs:
//
//	taskset -c 0 kvferry null-server --listen 127.0.0.1:8000 --ttft 100ms --itl 100ms
//	taskset -c 1 go test ./bench/client -run '^$' -bench Streams -benchtime 1x -streams-url http://127.0.0.1:8000
//
// us/token is this process' CPU time, user and system; late-ms is sent minus intended;
// read-ms how long the kernel had had a piece of the answer before it was read, the longest of
// each request.
func BenchmarkStreams(b *testing.B) {
	if *streamsURL == "" {
		b.Skip("no -streams-url")
	}
	const tokens, each = 200, 20 * time.Second
	for n := range strings.SplitSeq(*streamsOf, ",") {
		var open int
		if _, err := fmt.Sscan(n, &open); err != nil {
			b.Fatal(err)
		}
		b.Run(n, func(b *testing.B) {
			rate := float64(open) / each.Seconds()
			asked, err := load.Spec{Requests: int(rate * (each + *streamsFor).Seconds()), Rate: rate, Burstiness: 1, InputLen: 128, OutputLen: tokens, Vocab: 32000}.Open()
			if err != nil {
				b.Fatal(err)
			}
			c := New(Config{URL: *streamsURL})
			defer c.Close()
			if *streamsNet {
				c.wire.Close()
				c.wire = nil
			}
			var late, read []float64
			var itl stats.Histogram
			failed, got := map[string]int{}, 0
			before := cpu()
			if _, err := c.Run(context.Background(), "null", asked, func(r *Record) {
				late = append(late, r.Late()*1e3)
				read = append(read, r.ReadDelay*1e3)
				if r.Error != "" {
					failed[r.Error]++
				}
				got += len(r.TokenTimes)
				for gap := range r.ITL() {
					itl.Add(time.Duration(gap * float64(time.Second)))
				}
			}); err != nil {
				b.Fatal(err)
			}
			used := cpu() - before
			slices.Sort(late)
			slices.Sort(read)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(used.Microseconds())/float64(got), "us/token")
			b.ReportMetric(stats.Percentile(late, 50), "late-p50-ms")
			b.ReportMetric(stats.Percentile(late, 99), "late-p99-ms")
			b.ReportMetric(stats.Percentile(late, 100), "late-max-ms")
			b.ReportMetric(stats.Percentile(read, 99), "read-p99-ms")
			b.ReportMetric(float64(itl.Percentile(99).Microseconds())/1e3, "itl-p99-ms")
			b.ReportMetric(peak(), "rss-MB")
			for why, n := range failed {
				b.Errorf("%d of %d failed: %s", n, len(late), why)
			}
		})
	}
}

// cpu is the CPU time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak is the most memory that was resident, in MB; it does not go back from one benchmark
// to the next.
func peak() float64 {
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
			return kb / 1e3
		}
	}
	return math.NaN()
}
