package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"kvferry/bench/page"
	"kvferry/config"
)

// SimulateConfig is a simulation, or a sweep over one, with where it goes.
type SimulateConfig struct {
	Sweep    Sweep  // its Base alone if it has no Params
	Out      string // folder for the results; it is created
	Detailed bool   // results.jsonl with a line a request; of a sweep never
	Command  []string

	Stdout   io.Writer // the report, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
}

const sweepFile = "sweep.json"

// Simulate runs the simulation or the sweep, prints it and writes its files.
// When ctx is done it writes and prints the points that had ended and returns
// ctx's error.
func Simulate(ctx context.Context, cfg SimulateConfig) error {
	if cfg.Stdout == nil {
		cfg.Stdout = io.Discard
	}
	if cfg.Progress == nil {
		cfg.Progress, cfg.Terminal = io.Discard, false
	}
	if cfg.Out == "" {
		return config.Faults{config.NewFault("Out", nil, "name a folder for the results")}.Err("bench.SimulateConfig")
	}
	if len(cfg.Sweep.Params) > 0 {
		return cfg.sweep(ctx)
	}
	return cfg.point(ctx)
}

func (cfg *SimulateConfig) point(ctx context.Context) error {
	s := cfg.Sweep.Base
	if err := s.Validate(); err != nil {
		return err
	}
	bar := newSimulationBar(cfg, s.requests())
	out := &output{dir: cfg.Out, warn: bar.say}
	names := []string{summaryFile, reportFile}
	if cfg.Detailed {
		out = openOutput(cfg.Out, bar.say)
		s.Records = out
		names = append([]string{recordsFile}, names...)
	}
	r, err := s.Run(ctx, bar.ended)
	bar.close()
	if r == nil {
		return errors.Join(err, out.close())
	}
	out.save(cfg.file(summaryFile, r), page.File{Name: reportFile, Write: r.WriteHTML})
	return errors.Join(err, r.WriteText(cfg.Stdout), cfg.end(out, names))
}

// end closes the folder and says where its files are, or that they are not there.
func (cfg *SimulateConfig) end(out *output, names []string) error {
	if err := out.close(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cfg.Stdout, "\n%s\n", page.Listing(cfg.Out, names...))
	return err
}

func (cfg *SimulateConfig) sweep(ctx context.Context) error {
	w := &cfg.Sweep
	if err := w.Validate(); err != nil {
		return err
	}
	points := 1
	for _, p := range w.Params {
		points *= len(p.Values)
	}
	bar := newSimulationBar(cfg, points*w.Base.requests())
	out := &output{dir: cfg.Out, warn: bar.say}
	n := 0
	r, err := w.Run(ctx, bar.ended, func(p *SimulationResult, sofar *SweepResult) {
		n++
		bar.line(fmt.Sprintf("point %d/%d %s: %.1f %% attained, %.2f good requests/s (%.2f s)", n, points, sofar.label(p), 100*p.Attained, p.Goodput, p.WallS))
		out.save(cfg.file(sweepFile, sofar))
	})
	bar.close()
	if r == nil || len(r.Points) == 0 {
		return err
	}
	out.save(cfg.file(sweepFile, r), page.File{Name: reportFile, Write: r.WriteHTML})
	first := r.Points[0]
	fmt.Fprintf(cfg.Stdout, "virtual time, everything modelled: %s (%s); SLO %s\nfirst    %s\nload     %s\n\n%s%s\n",
		first.Cluster.Profile, first.Cluster.GPU, sloText(first.SLO), &first.Cluster, &first.Load, r.table().Text(), "best: "+r.Why)
	for _, p := range r.Points {
		if p.Failed > 0 {
			fmt.Fprintf(cfg.Stdout, "refused at %s: %d of %d requests, the first: %s (see --max-model-len, --kv-blocks)\n", r.label(p), p.Failed, p.Requests, p.Failure)
		}
	}
	return errors.Join(err, cfg.end(out, []string{sweepFile, reportFile}))
}

// file is a result with the command and the time that made it.
func (cfg *SimulateConfig) file(name string, result any) page.File {
	return page.File{Name: name, Write: func(w io.Writer) error { return cfg.encode(w, result) }}
}

// encode writes a result with the command and the time that made it.
func (cfg *SimulateConfig) encode(w io.Writer, result any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Command []string  `json:"command"`
		Written time.Time `json:"written"`
		Result  any       `json:"result"`
	}{cfg.Command, time.Now(), result})
}

// simulationBar shows how many requests have ended: a bar with the time left on a
// terminal, drawn twice a second, else the lines it is given.
type simulationBar struct {
	cfg *SimulateConfig
	mu  sync.Mutex
	bar *progressbar.ProgressBar // nil where it is no terminal
}

func newSimulationBar(cfg *SimulateConfig, requests int) *simulationBar {
	b := &simulationBar{cfg: cfg}
	if cfg.Terminal {
		b.bar = progressbar.NewOptions64(max(int64(requests), 1),
			progressbar.OptionSetWriter(cfg.Progress),
			progressbar.OptionSetWidth(24),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionShowCount(),
			progressbar.OptionThrottle(barPeriod),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetDescription("requests simulated"),
		)
	}
	return b
}

func (b *simulationBar) ended(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		// At its maximum a bar is finished for good; close does that.
		_ = b.bar.Set64(min(int64(n), b.bar.GetMax64()-1))
	}
}

// line is for where there is no bar.
func (b *simulationBar) line(text string) {
	if b.bar == nil {
		b.say(text)
	}
}

// say prints a line, above the bar if there is one.
func (b *simulationBar) say(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	fmt.Fprintln(b.cfg.Progress, text)
}

func (b *simulationBar) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}
