// Package simulation is kvferry sim: any cluster under any load in virtual time
// (package sim), or a sweep over one or two of their parameters. Where the bench of the
// published table keeps a record a request, percentiles are kept here in a fixed amount of
// memory, as there may be millions.
//
// A [Simulation] is one point, a [Sweep] several; [Run] writes their files and prints
// them. Everything in a [Result] is modelled. Durations in results are milliseconds,
// rates bytes a second.
package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"kvferry/bench/page"
	"kvferry/internal/config"
	"kvferry/internal/progress"
)

// Config is a simulation, or a sweep over one, with where it goes.
type Config struct {
	Sweep    Sweep  // its Base alone if it has no Params
	Out      string // folder for the results; it is created
	Detailed bool   // results.jsonl with a line a request; of a sweep never
	Command  []string

	Stdout   io.Writer // the report, default none
	Progress io.Writer // bar or lines, default none
	Terminal bool      // Progress is a terminal
}

// Names of the files in the folder of results, beside [page.RecordsFile].
const (
	summaryFile = "summary.json"
	reportFile  = "report.html"
	sweepFile   = "sweep.json"
)

// clock is what results say of their times.
const clock = "virtual"

// Run runs the simulation or the sweep, prints it and writes its files.
// When ctx is done it writes and prints the points that had ended and returns
// ctx's error.
func Run(ctx context.Context, cfg Config) error {
	config.Default(&cfg.Stdout, io.Discard)
	config.Default(&cfg.Progress, io.Discard)
	if err := page.CheckNew(cfg.Out); err != nil {
		return config.Faults{{Field: "Out", Err: err}}.Err("simulation.Config")
	}
	if len(cfg.Sweep.Params) > 0 {
		return cfg.sweep(ctx)
	}
	return cfg.point(ctx)
}

func (cfg *Config) point(ctx context.Context) error {
	s := cfg.Sweep.Base
	if err := s.Validate(); err != nil {
		return err
	}
	shown := cfg.start(s.Load.Requests)
	out := page.NewFolder(cfg.Out, shown.Say)
	names := []string{summaryFile, reportFile}
	if cfg.Detailed {
		out = page.OpenFolder(cfg.Out, shown.Say)
		s.Records = out
		names = append([]string{page.RecordsFile}, names...)
	}
	r, err := s.Run(ctx, func(ended int) { shown.Set(int64(ended)) })
	shown.Stop()
	if r == nil {
		return errors.Join(err, out.Close())
	}
	out.Save(cfg.file(summaryFile, r), page.File{Name: reportFile, Write: r.WriteHTML})
	return errors.Join(err, r.WriteText(cfg.Stdout), cfg.end(out, names))
}

// end closes the folder and says where its files are, or that they are not there.
func (cfg *Config) end(out *page.Folder, names []string) error {
	if err := out.Close(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cfg.Stdout, "\n%s\n", page.Listing(cfg.Out, names...))
	return err
}

func (cfg *Config) sweep(ctx context.Context) error {
	w := &cfg.Sweep
	if err := w.Validate(); err != nil {
		return err
	}
	points := 1
	for _, p := range w.Params {
		points *= len(p.Values)
	}
	shown := cfg.start(points * w.Base.Load.Requests)
	out := page.NewFolder(cfg.Out, shown.Say)
	n := 0
	r, err := w.Run(ctx, func(ended int) { shown.Set(int64(ended)) }, func(p *Result, sofar *SweepResult) {
		n++
		shown.Log(fmt.Sprintf("point %d/%d %s: %.1f %% attained, %.2f good requests/s (%.2f s)", n, points, sofar.label(p), 100*p.Attained, p.Goodput, p.WallS))
		out.Save(cfg.file(sweepFile, sofar))
	})
	shown.Stop()
	if r == nil || len(r.Points) == 0 {
		return err
	}
	out.Save(cfg.file(sweepFile, r), page.File{Name: reportFile, Write: r.WriteHTML})
	first := r.Points[0]
	fmt.Fprintf(cfg.Stdout, "virtual time, everything modelled: %s (%s); SLO %s\nfirst    %s\nload     %s\n\n%s%s\n",
		first.Cluster.Profile, first.Cluster.GPU, sloText(first.SLO), &first.Cluster, &first.Load, r.table().Text(), "best: "+r.Why)
	for _, line := range r.lines() {
		fmt.Fprintln(cfg.Stdout, line)
	}
	for _, p := range r.Points {
		if p.Failed > 0 {
			fmt.Fprintf(cfg.Stdout, "refused at %s: %d of %d requests, the first: %s\n", r.label(p), p.Failed, p.Requests, p.failure())
		}
	}
	return errors.Join(err, cfg.end(out, []string{sweepFile, reportFile}))
}

// file is a result with the command and the time that made it.
func (cfg *Config) file(name string, result any) page.File {
	return page.File{Name: name, Write: func(w io.Writer) error { return cfg.encode(w, result) }}
}

// encode writes a result with the command and the time that made it.
func (cfg *Config) encode(w io.Writer, result any) error {
	return page.WriteJSON(w, struct {
		Command []string  `json:"command"`
		Written time.Time `json:"written"`
		Result  any       `json:"result"`
	}{cfg.Command, time.Now(), result})
}

// start returns a Task that shows how many of that many requests have ended.
func (cfg *Config) start(requests int) *progress.Task {
	t := progress.New(cfg.Progress, cfg.Terminal)
	t.Start(progress.State{What: "simulating", Total: int64(requests), Unit: "requests"})
	return t
}
