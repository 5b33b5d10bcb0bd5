// Package serving measures what the serving path itself costs, the proxy and a node: CPU
// time a token, inter-token latency and memory, on GPUs that cost nothing or take a fixed
// time. It is kvferry lab serving.
package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/internal/proc"
	"kvferry/load"
)

// Config is a run: what the serving path itself costs: the proxy and a
// node whose GPU is free (Burst) or takes exactly 10 ms a step (Paced).
type Config struct {
	Burst, Paced func(ctx context.Context) (MeteredCluster, error)
	Repeat       int // runs of each, the medians count
	Stdout       io.Writer
	Progress     io.Writer
}

// A MeteredCluster knows what its processes use.
type MeteredCluster interface {
	URL() string
	Close() error
	// client.Usage is the CPU time used so far and the memory at its peak, by process.
	Usage() ([]ProcessUsage, error)
}

// ProcessUsage is the usage of one daemon of a cluster.
type ProcessUsage struct {
	Name string
	proc.Usage
}

// What the serving path may cost; see Result.
const (
	burstStreams, burstTokens = 32, 128
	pacedStreams, pacedTokens = 1000, 512
	pacedITL                  = 10.0 // ms

	promptTokens, vocabulary = 16, 1000

	maxCPUPerToken = 12.0 // us, engine and proxy together
	maxITLError    = 0.1  // ms, of the median
	// maxMemory is of what engine and proxy have for themselves. How much of the program's file
	// is mapped depends on the system's page cache: of one build 29 to 35 MB were seen.
	maxMemory = 50e6

	// fullCPUs is from where on, in percent, the ITL is that of a machine that has no time
	// left, whatever the daemons do.
	fullCPUs = 95.0
)

// Result has the figures of one run.
type Result struct {
	CPUPerToken   map[string]float64 // us, burst, by process
	TokensPerSec  float64            // burst
	MedianITL     float64            // ms, paced
	P99ITL        float64
	MeanTTFT      float64
	Own           map[string]int64 // bytes at the peak, paced, by process
	Program       int64            // bytes, shared
	PacedPerToken map[string]float64
	// InUse is the share of the machine's CPUs that were not idle during the paced part,
	// in percent: this client's too. Negative if the system does not say.
	InUse float64
}

// Run runs the benchmark, prints its table, and fails if a limit is
// missed.
func Run(ctx context.Context, cfg Config) error {
	var runs []Result
	for i := range max(cfg.Repeat, 1) {
		var r Result
		if err := r.burst(ctx, cfg.Burst); err != nil {
			return fmt.Errorf("burst, run %d: %w", i+1, err)
		}
		if err := r.paced(ctx, cfg.Paced); err != nil {
			return fmt.Errorf("paced, run %d: %w", i+1, err)
		}
		fmt.Fprintf(cfg.Progress, "run %d/%d: %.2f us/token, median ITL %.3f ms, %.0f MB\n", i+1, max(cfg.Repeat, 1), total(r.CPUPerToken), r.MedianITL, r.memory()/1e6)
		runs = append(runs, r)
	}
	return report(cfg.Stdout, runs)
}

// memory is what the daemons have resident together at their peaks, in bytes.
func (r *Result) memory() float64 { return float64(total(r.Own)) }

func total[V int64 | float64](m map[string]V) (sum V) {
	for _, v := range m {
		sum += v
	}
	return sum
}

func medianOf(runs []Result, f func(Result) float64) float64 {
	v := make([]float64, len(runs))
	for i, r := range runs {
		v[i] = f(r)
	}
	return stats.Median(v)
}

func report(w io.Writer, runs []Result) error {
	var faults []error
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "serving path, median of %d\tmeasured\tlimit\t\n", len(runs))
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
	info := func(what, unit string, v float64) { fmt.Fprintf(t, "%s\t%.2f %s\t\t\n", what, v, unit) }
	line(fmt.Sprintf("CPU a token, %d streams x %d tokens, free GPU", burstStreams, burstTokens), "us", medianOf(runs, func(r Result) float64 { return total(r.CPUPerToken) }), maxCPUPerToken, true)
	for _, name := range slices.Sorted(maps.Keys(runs[0].CPUPerToken)) {
		info("  of which "+name, "us", medianOf(runs, func(r Result) float64 { return r.CPUPerToken[name] }))
	}
	info("  tokens a second", "tok/s", medianOf(runs, func(r Result) float64 { return r.TokensPerSec }))
	itl := medianOf(runs, func(r Result) float64 { return r.MedianITL })
	inUse := medianOf(runs, func(r Result) float64 { return r.InUse })
	line(fmt.Sprintf("median ITL's distance from %.0f ms, %d streams", pacedITL, pacedStreams), "ms", max(itl-pacedITL, pacedITL-itl), maxITLError, inUse <= fullCPUs)
	info("  P99 ITL", "ms", medianOf(runs, func(r Result) float64 { return r.P99ITL }))
	info("  CPU a token", "us", medianOf(runs, func(r Result) float64 { return total(r.PacedPerToken) }))
	if inUse >= 0 {
		info("  CPUs in use, this client's part included", "%", inUse)
	}
	line("memory of their own at its peak, engine + proxy", "MB", medianOf(runs, func(r Result) float64 { return r.memory() / 1e6 }), maxMemory/1e6, true)
	for _, name := range slices.Sorted(maps.Keys(runs[0].Own)) {
		info("  of which "+name, "MB", medianOf(runs, func(r Result) float64 { return float64(r.Own[name]) / 1e6 }))
	}
	info("  besides, of the program's file, which they share", "MB", medianOf(runs, func(r Result) float64 { return float64(r.Program) / 1e6 }))
	if err := t.Flush(); err != nil {
		return err
	}
	if inUse > fullCPUs {
		fmt.Fprintf(w, "The ITL is not judged: with %d streams and their client, no CPU of this machine was free.\n", pacedStreams)
	}
	return errors.Join(faults...)
}

// burst: a closed loop of 32 streams of 128 tokens for some seconds.
func (r *Result) burst(ctx context.Context, start func(context.Context) (MeteredCluster, error)) error {
	return with(ctx, start, func(asker *client.Client, model string, usage func() (map[string]ProcessUsage, error)) error {
		const warm, requests = 200, 4000
		if _, err := closedLoop(ctx, asker, model, burstStreams, warm, burstTokens, nil); err != nil {
			return err
		}
		before, err := usage()
		if err != nil {
			return err
		}
		took, err := closedLoop(ctx, asker, model, burstStreams, requests, burstTokens, nil)
		if err != nil {
			return err
		}
		after, err := usage()
		if err != nil {
			return err
		}
		const tokens = float64(requests * burstTokens)
		r.TokensPerSec = tokens / took.Seconds()
		r.CPUPerToken = make(map[string]float64)
		for name, u := range after {
			r.CPUPerToken[name] = float64((u.CPU - before[name].CPU).Microseconds()) / tokens
		}
		return nil
	})
}

// paced: 1,000 streams at once on a GPU that takes 10 ms a step.
func (r *Result) paced(ctx context.Context, start func(context.Context) (MeteredCluster, error)) error {
	return with(ctx, start, func(asker *client.Client, model string, usage func() (map[string]ProcessUsage, error)) error {
		before, err := usage()
		if err != nil {
			return err
		}
		idle, began := observe.ReadUsage(nil)
		start := time.Now()
		var itl []float64 // ms
		_, err = closedLoop(ctx, asker, model, pacedStreams, pacedStreams, pacedTokens, func(rec *client.Record) {
			r.MeanTTFT += rec.TTFT() * 1e3 / pacedStreams
			for gap := range rec.ITL() {
				itl = append(itl, gap*1e3)
			}
		})
		if err != nil {
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
		r.Own, r.PacedPerToken = make(map[string]int64), make(map[string]float64)
		for name, u := range after {
			r.Own[name] = u.Own
			r.Program = max(r.Program, u.Program)
			r.PacedPerToken[name] = float64((u.CPU - before[name].CPU).Microseconds()) / float64(pacedStreams*pacedTokens)
		}
		return nil
	})
}

func with(ctx context.Context, start func(context.Context) (MeteredCluster, error), f func(*client.Client, string, func() (map[string]ProcessUsage, error)) error) (err error) {
	c, err := start(ctx)
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
	return f(asker, model, func() (map[string]ProcessUsage, error) {
		list, err := c.Usage()
		by := make(map[string]ProcessUsage)
		for _, u := range list {
			by[u.Name] = u
		}
		return by, err
	})
}

// closedLoop sends n requests, so many at once as there are streams: each as soon as one
// before it is over. It ends with the first that fails. done is told of each, if it is not
// nil.
func closedLoop(ctx context.Context, asker *client.Client, model string, streams, n, tokens int, done func(*client.Record)) (time.Duration, error) {
	asked, err := load.Spec{Requests: n, Rate: math.Inf(1), Burstiness: 1, InputLen: promptTokens, OutputLen: tokens, Vocab: vocabulary}.Open()
	if err != nil {
		return 0, err
	}
	asked.InFlight = streams
	ctx, stop := context.WithCancelCause(ctx)
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
