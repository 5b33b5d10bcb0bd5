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

	"kvferry/bench/document"
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

// sweepFile takes the place of [document.SummaryFile] for a sweep.
const sweepFile = "sweep.json"

// clock is what results say of their times.
const clock = "virtual"

// Run runs the simulation or the sweep, prints it and writes its files.
// When ctx is done it writes and prints the points that had ended and returns
// ctx's error.
func Run(ctx context.Context, cfg Config) error {
	config.Default(&cfg.Stdout, io.Discard)
	config.Default(&cfg.Progress, io.Discard)
	if err := document.CheckNew(cfg.Out); err != nil {
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
	out := document.NewFolder(cfg.Out, shown.Say)
	if cfg.Detailed {
		out = document.OpenFolder(cfg.Out, shown.Say)
		s.Records = out
	}
	r, err := s.Run(ctx, func(ended int) { shown.Set(int64(ended)) })
	shown.Stop()
	if r == nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(err, cfg.end(out, r.document(), r))
}

// end sets the document's data to the record of result, and writes and prints the document.
func (cfg *Config) end(out *document.Folder, d *document.Document, result any) error {
	d.Data = cfg.record(result)
	return out.End(d, cfg.Stdout)
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
	out := document.NewFolder(cfg.Out, shown.Say)
	n := 0
	r, err := w.Run(ctx, func(ended int) { shown.Set(int64(ended)) }, func(p *Result, sofar *SweepResult) {
		n++
		shown.Log(fmt.Sprintf("point %d/%d %s: %.1f %% attained, %.2f good requests/s (%.2f s)", n, points, sofar.label(p), 100*p.Attained, p.Goodput, p.WallS))
		out.Save(document.File{Name: sweepFile, Write: func(w io.Writer) error { return document.WriteJSON(w, cfg.record(sofar)) }})
	})
	shown.Stop()
	if r == nil || len(r.Points) == 0 {
		return err
	}
	return errors.Join(err, cfg.end(out, r.document(), r))
}

// record returns result together with the command and the time that made it.
func (cfg *Config) record(result any) any {
	return struct {
		Command []string  `json:"command"`
		Written time.Time `json:"written"`
		Result  any       `json:"result"`
	}{cfg.Command, time.Now(), result}
}

// start returns a Task that shows how many of that many requests have ended.
func (cfg *Config) start(requests int) *progress.Task {
	t := progress.New(cfg.Progress, cfg.Terminal)
	t.Start(progress.State{What: "simulating", Total: int64(requests), Unit: "requests"})
	return t
}
