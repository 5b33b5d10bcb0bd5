package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/stats"
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
	r, err := x.once(ctx, t, &facts, spec, facts.Clock, RateTry{})
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
	var failure string
	_, err = t.Run(ctx, load.Load{Source: &list, InFlight: 1}, func(r *client.Record) {
		x.ended(r)
		failure = cmp.Or(failure, r.Failure())
	})
	x.bar.Stop()
	if err == nil && failure != "" {
		err = fmt.Errorf("warm-up request failed: %s", failure)
	}
	return err
}

// once asks the target what spec says, and makes a report's run of it. The run is not nil if
// anything was asked, whatever the error. try is the run of a search that this is, or zero. What is
// counted of machine and server begins as late as it can and ends as soon: warming up is not in it.
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
	r := &report.Run{Setup: x.setup(f, &spec), Notes: append(slices.Clone(f.Notes), l.Notes...), Point: try.Value, Repeat: try.Repeat}
	r.Started = time.Now()
	var watch *observe.Watch
	if f.Clock == report.ClockReal {
		if watch, err = observe.StartWatch(x.Clock, f.Pids); err != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("who uses the CPUs is not known: %v", err))
		}
	}
	var counted *observe.Scrape
	if f.Scrape != nil {
		counted = f.Scrape(ctx)
	}
	x.show(name, cmp.Or(l.Count, spec.Requests))
	took, err := t.Run(ctx, l, func(rec *client.Record) {
		x.ended(rec)
		r.Records = append(r.Records, *rec)
		x.out.Record(line{Clock: f.Clock, Point: try.Value, Repeat: try.Repeat, Record: rec})
	})
	x.bar.Stop()
	if watch != nil {
		var unseen error
		if r.Disturbance, unseen = watch.End(); unseen != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("who used the CPUs is not known: %v", unseen))
		}
	}
	if f.Spans != nil {
		if n := f.Spans(); n.Dropped > 0 {
			said := "traces: " + n.String()
			r.Notes = append(r.Notes, said)
			x.bar.Say(said) // on stderr too: nobody reads a report's notes to see why a collector is empty
		}
	}
	err = errors.Join(err, l.Close())
	// They came in the order of their ends. Reports, and the tools' lists, have that of the load.
	slices.SortFunc(r.Records, func(a, b client.Record) int { return a.Index - b.Index })
	r.Duration = stats.Seconds(took)
	r.Interrupted = ctx.Err() != nil
	x.settled(r)
	if counted != nil {
		x.counted(ctx, r, f, counted)
	} else if want := x.Load.Sharing.HitRate; want > 0 {
		r.Notes = append(r.Notes, hitRate(r, want))
	}
	if f.About != nil && x.Writes(LayoutSGLang) {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), countedWait)
		defer cancel()
		r.ServerInfo = f.About(limited)
	}
	return r, err
}

// hitRate says the share of prompt tokens that a modelled cluster had cached beside the one that
// was wanted: it has no metrics of its own.
func hitRate(r *report.Run, want float64) string {
	asked, cached := 0, 0
	for i := range r.Records {
		if u := r.Records[i].Usage; u != nil {
			asked, cached = asked+u.PromptTokens, cached+u.CachedTokens
		}
	}
	return fmt.Sprintf("prefix cache: %.1f %% of the prompt tokens were in it, %.1f %% were wanted", 100*float64(cached)/float64(max(asked, 1)), 100*want)
}

// settled finds the part of the run in which the load was steady, and its figures. That there is
// none is a note and no error: most short runs have none.
func (x *run) settled(r *report.Run) {
	records := pointers(r.Records)
	w, err := x.Steady.Find(records)
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
		return
	}
	if w.Note != "" {
		r.Notes = append(r.Notes, w.Note)
	}
	whole, part := WholeWindow(records).Figures(records), w.Figures(records)
	r.Steady = &report.Steady{From: w.Start, To: w.End, Figures: part, Table: SteadyTable(whole, part)}
}

// pointers are the records one by one.
func pointers(records []client.Record) iter.Seq[*client.Record] {
	return func(yield func(*client.Record) bool) {
		for i := range records {
			if !yield(&records[i]) {
				return
			}
		}
	}
}

// countedWait is how long a server may take for its own figures after a run.
const countedWait = 5 * time.Second

// counted sets the server's own figures beside the client's. A run that was interrupted has
// them too.
func (x *run) counted(ctx context.Context, r *report.Run, f *Facts, before *observe.Scrape) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countedWait)
	defer cancel()
	c := observe.ClientFiguresOf(pointers(r.Records))
	c.Here, c.WantedHitRate = f.Here, x.Load.Sharing.HitRate
	account := before.After(ctx, c)
	r.Tables, r.Server = append(r.Tables, account.Tables()...), account
	for _, w := range account.Words {
		r.Notes = append(r.Notes, w.Text)
	}
	r.Notes = append(r.Notes, account.Missing...)
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
	s.TraceTimestamps = spec.Reads("Speed") && !spec.Untimed
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
