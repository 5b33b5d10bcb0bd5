package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/client/clienttest"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/internal/proc"
	"kvferry/load"
)

// The loads of BenchmarkServing and the limits of its figures.
const (
	burstStreams, burstTokens = 32, 128
	pacedStreams, pacedTokens = 1000, 512
	pacedITL                  = 10.0 // ms

	servedPrompt, servedVocabulary = 16, 1000

	maxCPUPerToken = 12.0 // us, engine and proxy together
	maxITLError    = 0.1  // ms, of the median
	// maxMemory bounds what engine and proxy have for themselves. How much of the program's file
	// is mapped depends on the system's page cache: of one build 29 to 35 MB were seen.
	maxMemory = 50e6

	// fullCPUs is the percentage of busy CPUs above which the ITL is that of a machine that has
	// no time left, whatever the daemons do.
	fullCPUs = 95.0
)

// servingCost holds the figures of one run.
type servingCost struct {
	CPUPerToken   map[string]float64 // us, burst, by process
	TokensPerSec  float64            // burst
	MedianITL     float64            // ms, paced
	P99ITL        float64
	Own           map[string]int64 // bytes at the peak, paced, by process
	Program       int64            // bytes, shared
	PacedPerToken map[string]float64
	// InUse is the percentage of the machine's CPU time that was not idle during the paced part,
	// this client's included. It is negative if the system does not report it.
	InUse float64
}

// BenchmarkServing measures what the proxy and a node cost themselves: CPU time a streamed token
// on a GPU that is free; then, on one that takes exactly 10 ms a step, inter-token latency and
// memory of 1,000 streams at once. Proxy, node and this client share the machine. It prints the
// medians of three runs and fails if one misses its limit.
func BenchmarkServing(b *testing.B) {
	b.Setenv("GOGC", "") // the daemons' own, not what TestMain gives to those of tests
	for range b.N {
		runs := make([]servingCost, 3)
		for i := range runs {
			r := &runs[i]
			if err := errors.Join(serving(b.Context(), "zero", r.burst), serving(b.Context(), "itl10", r.paced)); err != nil {
				b.Fatal(err)
			}
		}
		if err := printServing(os.Stdout, runs); err != nil {
			b.Error(err)
		}
	}
}

func sum[V int64 | float64](m map[string]V) (sum V) {
	for _, v := range m {
		sum += v
	}
	return sum
}

// printServing prints the medians of the runs, and returns an error for each limit that is missed.
func printServing(w io.Writer, runs []servingCost) error {
	var faults []error
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "serving path, median of %d\tmeasured\tlimit\t\n", len(runs))
	median := func(f func(*servingCost) float64) float64 {
		v := make([]float64, len(runs))
		for i := range runs {
			v[i] = f(&runs[i])
		}
		return stats.Median(v)
	}
	line := func(what, unit string, v, limit float64, judged bool) {
		verdict := "ok"
		switch {
		case !judged:
			verdict = "not judged"
		case v > limit:
			verdict = "MISSED"
			faults = append(faults, fmt.Errorf("%s is %.3g %s: limit %.3g", what, v, unit, limit))
		}
		fmt.Fprintf(t, "%s\t%.2f %s\t%.4g\t%s\n", what, v, unit, limit, verdict)
	}
	info := func(what, unit string, f func(*servingCost) float64) {
		fmt.Fprintf(t, "%s\t%.2f %s\t\t\n", what, median(f), unit)
	}
	line(fmt.Sprintf("CPU a token, %d streams x %d tokens, free GPU", burstStreams, burstTokens), "us", median(func(r *servingCost) float64 { return sum(r.CPUPerToken) }), maxCPUPerToken, true)
	for _, name := range slices.Sorted(maps.Keys(runs[0].CPUPerToken)) {
		info("  of which "+name, "us", func(r *servingCost) float64 { return r.CPUPerToken[name] })
	}
	info("  tokens a second", "tok/s", func(r *servingCost) float64 { return r.TokensPerSec })
	itl := median(func(r *servingCost) float64 { return r.MedianITL })
	inUse := median(func(r *servingCost) float64 { return r.InUse })
	line(fmt.Sprintf("median ITL's distance from %.0f ms, %d streams", pacedITL, pacedStreams), "ms", math.Abs(itl-pacedITL), maxITLError, inUse <= fullCPUs)
	info("  P99 ITL", "ms", func(r *servingCost) float64 { return r.P99ITL })
	info("  CPU a token", "us", func(r *servingCost) float64 { return sum(r.PacedPerToken) })
	if inUse >= 0 {
		info("  CPUs in use, this client's part included", "%", func(r *servingCost) float64 { return r.InUse })
	}
	line("memory of their own at its peak, engine + proxy", "MB", median(func(r *servingCost) float64 { return float64(sum(r.Own)) / 1e6 }), maxMemory/1e6, true)
	for _, name := range slices.Sorted(maps.Keys(runs[0].Own)) {
		info("  of which "+name, "MB", func(r *servingCost) float64 { return float64(r.Own[name]) / 1e6 })
	}
	info("  besides, of the program's file, which they share", "MB", func(r *servingCost) float64 { return float64(r.Program) / 1e6 })
	if err := t.Flush(); err != nil {
		return err
	}
	if inUse > fullCPUs {
		fmt.Fprintf(w, "The ITL is not judged: with %d streams and their client, no CPU of this machine was free.\n", pacedStreams)
	}
	return errors.Join(faults...)
}

// burst loads 32 streams of 128 tokens in a closed loop for some seconds.
func (r *servingCost) burst(asker *client.Client, model string, usage func() (map[string]proc.Usage, error)) error {
	const warm, requests = 200, 4000
	if _, err := closedLoop(asker, model, burstStreams, warm, burstTokens, nil); err != nil {
		return err
	}
	before, err := usage()
	if err != nil {
		return err
	}
	took, err := closedLoop(asker, model, burstStreams, requests, burstTokens, nil)
	if err != nil {
		return err
	}
	after, err := usage()
	if err != nil {
		return err
	}
	const tokens = float64(requests * burstTokens)
	r.TokensPerSec, r.CPUPerToken = tokens/took.Seconds(), cpuPerToken(before, after, tokens)
	return nil
}

// paced loads 1,000 streams at once on a GPU that takes 10 ms a step.
func (r *servingCost) paced(asker *client.Client, model string, usage func() (map[string]proc.Usage, error)) error {
	before, err := usage()
	if err != nil {
		return err
	}
	idle, began := observe.ReadUsage(nil)
	start := time.Now()
	var itl []float64 // ms
	if _, err = closedLoop(asker, model, pacedStreams, pacedStreams, pacedTokens, func(rec *client.Record) {
		for gap := range rec.ITL() {
			itl = append(itl, gap*1e3)
		}
	}); err != nil {
		return err
	}
	r.InUse = -1
	if now, err := observe.ReadUsage(nil); err == nil && began == nil {
		use := observe.Used(idle, now, time.Since(start), false)
		r.InUse = use.OwnPct + use.OthersPct + use.StealPct
	}
	after, err := usage()
	if err != nil {
		return err
	}
	slices.Sort(itl)
	r.MedianITL, r.P99ITL = stats.Percentile(itl, 50), stats.Percentile(itl, 99)
	r.Own, r.PacedPerToken = make(map[string]int64), cpuPerToken(before, after, pacedStreams*pacedTokens)
	for name, u := range after {
		r.Own[name], r.Program = u.Own, max(r.Program, u.Program)
	}
	return nil
}

// cpuPerToken returns the CPU time that each process took for a token, in microseconds.
func cpuPerToken(before, after map[string]proc.Usage, tokens float64) map[string]float64 {
	all := make(map[string]float64)
	for name, u := range after {
		all[name] = float64((u.CPU - before[name].CPU).Microseconds()) / tokens
	}
	return all
}

// serving starts a proxy and a node with the profile, and has measure load them with a client.
// measure's usage returns what each daemon has used so far, by its name.
func serving(ctx context.Context, profile string, measure func(asker *client.Client, model string, usage func() (map[string]proc.Usage, error)) error) (err error) {
	c, err := Start(ctx, Spec{Nondisagg: 1, Profile: profile, Log: os.Stderr, LogLevel: "error"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	asker := client.New(client.Config{URL: c.URL(), Timeout: time.Minute})
	defer asker.Close()
	ready, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	model, err := asker.Ready(ready)
	if err != nil {
		return err
	}
	return measure(asker, model, func() (map[string]proc.Usage, error) {
		by := make(map[string]proc.Usage)
		var failed error
		for _, p := range c.Processes() {
			u, err := p.Usage()
			by[p.Name], failed = u, errors.Join(failed, err)
		}
		return by, failed
	})
}

// closedLoop sends n requests, at most streams at once, and ends with the first that fails. It
// calls done, unless it is nil, with each request that succeeded.
func closedLoop(asker *client.Client, model string, streams, n, tokens int, done func(*client.Record)) (time.Duration, error) {
	asked, err := load.Spec{Requests: n, Rate: math.Inf(1), Burstiness: 1, InputLen: servedPrompt, OutputLen: tokens, Vocab: servedVocabulary}.Open()
	if err != nil {
		return 0, err
	}
	asked.InFlight = streams
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	took, err := asker.Run(ctx, model, asked, func(r *client.Record) {
		if failure := r.Failure(); failure != "" {
			stop(fmt.Errorf("request %d: %s", r.Index, failure))
		} else if done != nil {
			done(r)
		}
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return took, err
}

// TestServingLimits: what is over its limit is named and fails, but for the ITL of a
// machine that had no CPU left for it.
func TestServingLimits(t *testing.T) {
	good := servingCost{CPUPerToken: map[string]float64{"proxy": 3}, MedianITL: 10.05, Own: map[string]int64{"proxy": 30e6}, Program: 20e6, InUse: 50}
	for _, tc := range []struct {
		name   string
		change func(*servingCost)
		fault  string // empty if it passes
		says   string
	}{
		{"good", func(*servingCost) {}, "", "50.00 %"},
		{"slow ITL", func(r *servingCost) { r.MedianITL = 10.2 }, "median ITL's distance", "MISSED"},
		{"fast ITL", func(r *servingCost) { r.MedianITL = 9.8 }, "median ITL's distance", "MISSED"},
		{"no CPU left", func(r *servingCost) { r.MedianITL, r.InUse = 10.2, 97 }, "", "not judged"},
		{"not known", func(r *servingCost) { r.MedianITL, r.InUse = 10.2, -1 }, "median ITL's distance", "MISSED"},
		{"memory", func(r *servingCost) { r.Own = map[string]int64{"proxy": 30e6, "nondisagg-0": 21e6}; r.InUse = 99 }, "memory of their own", "MISSED"},
		{"a large program", func(r *servingCost) { r.Program = 90e6 }, "", "90.00 MB"},
		{"CPU", func(r *servingCost) { r.CPUPerToken = map[string]float64{"proxy": 13} }, "CPU a token", "MISSED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := good
			tc.change(&r)
			var out strings.Builder
			err := printServing(&out, []servingCost{r})
			if (err == nil) != (tc.fault == "") || err != nil && !strings.Contains(err.Error(), tc.fault) || !strings.Contains(out.String(), tc.says) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// TestClosedLoop: every request is told of, and the first that fails ends the loop.
func TestClosedLoop(t *testing.T) {
	f := &clienttest.Server{}
	var n atomic.Int32
	f.Behave = func(w http.ResponseWriter, _ *http.Request, _ *clienttest.Completion) bool {
		if n.Add(1) != 25 {
			return false
		}
		http.Error(w, "pool is gone", http.StatusInternalServerError)
		return true
	}
	clienttest.NewServer(t, f)
	asker := client.New(client.Config{URL: f.URL})
	defer asker.Close()
	told := 0
	took, err := closedLoop(asker, "fake-7b", 4, 20, 3, func(r *client.Record) {
		if told++; r.PromptTokens != servedPrompt || len(r.TokenTimes) != 3 {
			t.Errorf("%+v", r)
		}
	})
	if err != nil || told != 20 || took <= 0 {
		t.Errorf("%d requests in %v, %v", told, took, err)
	}
	_, err = closedLoop(asker, "fake-7b", 4, 100000, 3, nil)
	if err == nil || !strings.Contains(err.Error(), "pool is gone") || n.Load() > 50000 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}
