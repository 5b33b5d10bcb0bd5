package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/internal/progress"
	"kvferry/load"
	"kvferry/proxy/serverinfo"
)

// Run opens each target, asks it what the load says, prints what came of it and writes the
// files. When ctx is done it keeps what was done, and returns ctx's error. The error of a
// run in which no request succeeded, or more than MaxFailures failed, says so.
func Run(ctx context.Context, cfg Config) error {
	cfg.defaults()
	if err := cfg.Validate(); err != nil {
		return err
	}
	x := &run{Config: cfg, bar: progress.New(cfg.Progress, cfg.Terminal)}
	if err := document.MakeFolder(cfg.Out); err != nil {
		return err // before the run: afterwards its records would be lost
	}
	x.out = document.OpenFolder(cfg.Out, x.bar.Say)
	x.runner = Runner{Clock: cfg.Clock, Steady: cfg.Steady, HitRate: cfg.Load.Sharing.HitRate, KeepInfo: cfg.Writes(LayoutSGLang), Say: x.bar.Say, Watch: cfg.watch}
	var failed error
	for _, t := range cfg.Targets {
		err := x.target(ctx, t)
		failed = errors.Join(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed, x.finish())
}

// run is one that goes on.
type run struct {
	Config
	runner  Runner
	out     *document.Folder // gets a record as its request ends; the caller of Run owns the files
	bar     *progress.Task
	reports []*report.Report // of runs that are over, one a target

	found *RateResult // of a search
}

// show shows a run of that many requests, 0 if that is not known.
func (x *run) show(what string, requests int) {
	x.bar.Start(progress.State{What: what, Total: int64(requests), Unit: "requests"})
}

// ended counts a request.
func (x *run) ended(r *client.Record) {
	x.bar.Update(func(s *progress.State) {
		s.Done++
		if r.Status == client.StatusFailed {
			s.Failed++
		}
	})
}

// target opens a target, asks it, and closes it, also after a failed Open: a cluster may be half
// started then. Once ctx is done, that it did not stop cleanly is not said: what ended the run is.
func (x *run) target(ctx context.Context, t Target) (err error) {
	limited, cancel := context.WithTimeoutCause(ctx, x.OpenTimeout, fmt.Errorf("it did not answer within %v", x.OpenTimeout))
	facts, err := t.Open(limited)
	cancel()
	defer func() {
		if closed := t.Close(); closed != nil && ctx.Err() == nil {
			err = errors.Join(err, fmt.Errorf("the cluster did not stop cleanly: %w", closed))
		}
	}()
	if err != nil {
		return err
	}
	spec, err := x.spec(ctx, &facts)
	if err != nil {
		return err
	}
	if err := x.warmUp(ctx, t, spec); err != nil {
		return err
	}
	if x.Search != nil {
		return x.search(ctx, t, &facts, spec)
	}
	r, err := x.quiet(ctx, t, &facts, spec)
	if r != nil {
		x.reports = append(x.reports, report.New(r))
		x.save()
	}
	return err
}

// spec is the load in the target's tokens.
func (x *run) spec(ctx context.Context, f *Facts) (load.Spec, error) {
	spec := x.Load
	if spec.Tokenizer == nil && spec.Texts() && f.Tokenizer != nil {
		var err error
		if spec.Tokenizer, err = f.Tokenizer(ctx); err != nil {
			return spec, fmt.Errorf("the server's tokenizer, for a load of texts (--tokenizer names another): %w", err)
		}
	}
	switch {
	case spec.Tokenizer != nil:
		spec.Vocab = spec.Tokenizer.Len()
	case f.Vocab > 0:
		spec.Vocab = f.Vocab
	default:
		spec.Vocab = serverinfo.SafeVocabulary
	}
	return spec, nil
}

// warmUp sends copies of the load's first request, one after another. They are
// drawn from a load of their own, so that the run's begins with its first request. A warm-up that
// fails ends the run: the same request would fail in it.
func (x *run) warmUp(ctx context.Context, t Target, spec load.Spec) error {
	if x.Warmups == 0 {
		return nil
	}
	l, err := open(ctx, spec)
	if err != nil {
		return err
	}
	first, ok, err := l.Next()
	if err = errors.Join(err, l.Close()); err != nil || !ok {
		return err
	}
	first.ID, first.At = "", 0 // an id belongs to one request, and copies wait for no time
	if x.WarmupLen > 0 {
		first.MaxTokens = min(first.MaxTokens, x.WarmupLen)
	}
	list := make(load.List, x.Warmups)
	for i := range list {
		list[i] = first
		list[i].Prompt = slices.Clone(first.Prompt)
	}
	x.show("warming up", x.Warmups)
	defer x.bar.Stop()
	return x.runner.WarmUp(ctx, t, list, x.ended)
}

// quiet asks the target what spec says, and again while the machine disturbed the run, up to
// RetriesDisturbed times. It returns the least disturbed run, with a note on the others; records of
// all are kept.
func (x *run) quiet(ctx context.Context, t Target, f *Facts, spec load.Spec) (best *report.Run, err error) {
	var left []string
	for n := 0; ; n++ {
		name := f.Clock
		if n > 0 {
			name += ", measured again"
		}
		r, err := x.once(ctx, t, f, spec, name, RateTry{Repeat: n})
		if err != nil || r.Disturbance == nil {
			return cmp.Or(best, r), err
		}
		worse := r
		if best == nil || r.Disturbance.Score() < best.Disturbance.Score() {
			best, worse = r, best
		}
		if worse != nil {
			left = append(left, fmt.Sprintf("a run of the same load is not reported: %v", worse.Disturbance))
		}
		if !r.Disturbance.Disturbed() || n >= x.RetriesDisturbed {
			best.Notes, best.Repeat = append(best.Notes, left...), 0
			return best, nil
		}
		x.bar.Say(fmt.Sprintf("disturbed, measured again: %v", r.Disturbance))
		spec.Seed++ // other prompts: a prefix cache has these
	}
}

// once asks the target what spec says, and makes a report's run of it. The run is not nil if
// anything was asked, whatever the error. try is the run of a search that this is, or zero.
func (x *run) once(ctx context.Context, t Target, f *Facts, spec load.Spec, name string, try RateTry) (*report.Run, error) {
	l, err := open(ctx, spec)
	if err != nil {
		return nil, err
	}
	if f.Flush != nil {
		if err := f.Flush(ctx); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	x.show(name, cmp.Or(l.Count, spec.Requests))
	x.runner.Each = func(rec *client.Record) {
		x.ended(rec)
		x.out.Record(line{Clock: f.Clock, Point: try.Value, Repeat: try.Repeat, Record: rec})
	}
	r, err := x.runner.Run(ctx, t, f, l)
	x.bar.Stop()
	started := r.Started
	r.Setup, r.Point, r.Repeat = x.setup(f, &spec), try.Value, try.Repeat
	r.Started = started
	return r, err
}

// A line of results.jsonl.
type line struct {
	Clock  string  `json:"clock"`
	Point  float64 `json:"point,omitempty"`  // of a search: the rate, or the requests in flight
	Repeat int     `json:"repeat,omitempty"` // how many runs of Point were before
	*client.Record
}

// setup is what the command line said, with what the target knows better: its model, where it is
// asked, and what it takes.
func (x *run) setup(f *Facts, spec *load.Spec) report.Setup {
	s := x.Setup
	s.Clock, s.Label, s.System, s.Cluster = f.Clock, f.Label, f.System, f.Cluster
	s.BaseURL, s.Worker, s.Model = f.BaseURL, f.Workers, cmp.Or(f.Model, s.Model)
	s.Backend, s.Endpoint = cmp.Or(f.Backend, s.Backend), cmp.Or(f.Endpoint, s.Endpoint)
	s.NumPrompts, s.Seed, s.Dataset, s.DatasetPath = spec.Requests, spec.Seed, spec.Kind, spec.File
	s.RequestRate, s.Burstiness, s.MaxConcurrency = spec.Rate, spec.Burstiness, spec.InFlight
	s.InputLen, s.OutputLen, s.RangeRatio, s.ShareGPTOutputLen = spec.InputLen, spec.OutputLen, spec.RangeRatio, spec.ShareGPT.OutputLen
	s.TraceTimestamps = spec.Takes("speed") && !spec.Untimed
	if ramp := spec.RampUp; ramp.Strategy != "" {
		s.RampUp = &report.RampUp{Strategy: ramp.Strategy, Start: int(ramp.Start), End: int(ramp.End)}
	}
	s.LoRA, s.LoRAPick = spec.Adapters.Names, spec.Adapters.Choice
	if f.Accepts != nil {
		s.Accepts = f.Accepts
	}
	if f.Clock == report.ClockReal {
		s.Machine = observe.Describe()
	}
	return s
}
