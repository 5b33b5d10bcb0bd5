package serve

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/stats"
	"kvferry/internal/clock"
	"kvferry/load"
)

// A Runner runs loads against targets that are open, and returns the records of each run with
// what is known beside them. It is the only place where a run is measured: kvferry bench and
// its search, Mooncake's table and SGLang's runs are loops around it.
type Runner struct {
	Clock  clock.Clock  // of the watch on the machine. Default clock.Precise()
	Steady SteadyConfig // how the part of a run is found in which the load was steady
	// HitRate is the share of prompt tokens that the load is to find in a prefix cache, for the
	// comparison with what was found. 0 is none.
	HitRate float64
	// KeepInfo keeps what the server says of itself after a run.
	KeepInfo bool
	// Each is told of every request that has ended, one at a time. Default nobody is.
	Each func(*client.Record)
	// Say tells the user at once what a report would only tell later. Default nobody is told.
	Say func(string)
	// Watch looks at the machine, and at processes that are the run's own, until end is called.
	// Default observe.StartWatch.
	Watch func(pids []int) (end func() (*observe.Disturbance, error), err error)
}

// Run asks t what l says, whose facts are f, and closes l. The run is not nil, whatever the
// error: it has what was done. What is counted of machine and server begins as late as it can
// and ends as soon: warming up is not in it. Its Setup is the caller's to fill in.
func (x *Runner) Run(ctx context.Context, t Target, f *Facts, l load.Load) (*report.Run, error) {
	r := &report.Run{Notes: append(slices.Clone(f.Notes), l.Notes...)}
	r.Clock, r.Started = f.Clock, time.Now()
	ended := func() (*observe.Disturbance, error) { return nil, nil }
	if f.Clock == report.ClockReal {
		if end, err := x.watch(f.Pids); err != nil {
			r.Notes = append(r.Notes, fmt.Sprintf("who uses the CPUs is not known: %v", err))
		} else {
			ended = end
		}
	}
	var counted *observe.Scrape
	if f.Scrape != nil {
		counted = f.Scrape(ctx)
	}
	took, err := t.Run(ctx, l, func(rec *client.Record) {
		r.Records = append(r.Records, *rec)
		if x.Each != nil {
			x.Each(rec)
		}
	})
	var unseen error
	if r.Disturbance, unseen = ended(); unseen != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("who used the CPUs is not known: %v", unseen))
	}
	if f.Spans != nil {
		if n := f.Spans(); n.Dropped > 0 {
			said := "traces: " + n.String()
			r.Notes = append(r.Notes, said)
			if x.Say != nil {
				x.Say(said) // nobody reads a report's notes to see why a collector is empty
			}
		}
	}
	if closed := l.Close(); err == nil {
		err = closed
	}
	// They came in the order of their ends. Reports, and the tools' lists, have that of the load.
	slices.SortFunc(r.Records, func(a, b client.Record) int { return a.Index - b.Index })
	r.Duration = stats.Seconds(took)
	r.Interrupted = ctx.Err() != nil
	x.settled(r)
	if counted != nil {
		x.counted(ctx, r, f, counted)
	} else if x.HitRate > 0 {
		r.Notes = append(r.Notes, hitRate(r, x.HitRate))
	}
	if f.About != nil && x.KeepInfo {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), countedWait)
		defer cancel()
		r.ServerInfo = f.About(limited)
	}
	return r, err
}

func (x *Runner) watch(pids []int) (end func() (*observe.Disturbance, error), err error) {
	if x.Watch != nil {
		return x.Watch(pids)
	}
	w, err := observe.StartWatch(cmp.Or(x.Clock, clock.Precise()), pids)
	if err != nil {
		return nil, err
	}
	return w.End, nil
}

// WarmUp sends requests that are not counted, one after another, of which each is told. One that
// fails is an error: the same request would fail in the run.
func (x *Runner) WarmUp(ctx context.Context, t Target, requests load.List, each func(*client.Record)) error {
	var failure string
	_, err := t.Run(ctx, load.Load{Source: &requests, InFlight: 1}, func(r *client.Record) {
		failure = cmp.Or(failure, r.Failure())
		if each != nil {
			each(r)
		}
	})
	if err == nil && failure != "" {
		err = fmt.Errorf("warm-up request failed: %s", failure)
	}
	return err
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
func (x *Runner) settled(r *report.Run) {
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
func (x *Runner) counted(ctx context.Context, r *report.Run, f *Facts, before *observe.Scrape) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countedWait)
	defer cancel()
	c := observe.ClientFiguresOf(pointers(r.Records))
	c.Here, c.WantedHitRate = f.Here, x.HitRate
	account := before.After(ctx, c)
	r.Tables, r.Server = append(r.Tables, account.Tables()...), account
	for _, w := range account.Words {
		r.Notes = append(r.Notes, w.Text)
	}
	r.Notes = append(r.Notes, account.Missing...)
}
