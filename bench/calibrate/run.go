package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/bench/serve"
	"kvferry/engine"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/internal/progress"
	"kvferry/load"
	"kvferry/sim"
)

// Config is what is asked. Target and Base are required.
type Config struct {
	Target serve.Target // the server; Run opens and closes it
	// Base is the server in all but its costs: what its operator knows. With Fixed its costs are
	// taken as they are, and nothing is fitted.
	Base  *engine.Profile
	Fixed bool

	Rounds   int           // of the series
	Pause    time.Duration // before each point
	Patience time.Duration // for a point: see Series

	Check bool      // ask a held-back load too
	Held  load.Spec // that load: Requests, Rate, InputLen, OutputLen and Seed; see HeldBack

	Seed     uint64 // of prompts
	Out      string // file for the profile; "" for none
	Stdout   io.Writer
	Progress io.Writer
	Terminal bool // Progress is a terminal

	watch func() func() *observe.Disturbance // begins to look at this machine; what it returns says what else went on
}

// Run measures, fits, writes and prints the profile, and checks it.
func Run(ctx context.Context, c Config) (err error) {
	facts, err := c.Target.Open(ctx)
	defer func() { err = errors.Join(err, c.Target.Close()) }()
	if err != nil {
		return err
	}
	c.watch = watching(facts.Clock == report.ClockReal, facts.Pids)
	p, rpc := c.Base, sim.DefaultRPC
	if facts.Vocab > 0 {
		limited := *p
		limited.Vocab = min(p.Vocab, facts.Vocab) // a table may be longer than the vocabulary
		p = &limited
	}
	var held *HeldBack
	if c.Check {
		parts := 1
		if !c.Fixed {
			parts = c.Rounds
		}
		if held, err = holdBack(c.Target, p.Vocab, c.Held, parts); err != nil {
			return err
		}
	}
	var meanwhile *observe.Disturbance
	if c.Fixed {
		meanwhile, err = c.ask(ctx, held)
	} else {
		var f *Fitted
		if f, err = c.fit(ctx, p, held); err == nil {
			p, rpc, meanwhile = f.Profile, f.RPC, f.Meanwhile
		}
	}
	if err != nil || held == nil {
		return err
	}
	all, err := held.Compare(ctx, p, rpc)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(c.Stdout, verdict(held, all, meanwhile))
	return err
}

// fit measures the series, with a part of the held-back load behind each round if there is one, and writes and
// prints what the series comes to.
func (c *Config) fit(ctx context.Context, base *engine.Profile, held *HeldBack) (*Fitted, error) {
	b := progress.New(c.Progress, c.Terminal)
	s := Series{
		Target: c.Target, Vocab: base.Vocab, Rounds: c.Rounds, Patience: c.Patience, Pause: c.Pause, Seed: c.Seed,
		Longest: base.MaxModelLen, KV: base.Blocks() * base.KVGeometry.BlockTokens,
	}
	s.Batch, _ = base.Batch()
	b.Start(progress.State{What: "warming up"})
	s.AfterRound = func(round int) error {
		switch {
		case held == nil:
			return nil
		case round > 0:
			return held.Ask(ctx)
		}
		err := held.Settle(ctx)
		b.Say(held.String() + ", a part behind each round")
		return err
	}
	s.OnPoint = func(p Point, over, of int, left time.Duration) {
		switch {
		case of == 0:
			b.Describe(fmt.Sprintf("warming up: %v", p))
		case over == 1:
			b.Say(fmt.Sprintf("the series has %d points, %d rounds of them take about %v more", of/c.Rounds, c.Rounds, left.Round(time.Second)))
			b.Start(progress.State{What: "measuring", Total: int64(of), Unit: "points"})
		}
		b.Update(func(s *progress.State) { s.Done, s.Left = int64(over), left })
	}
	began, watched := time.Now(), c.watch()
	m, err := s.Run(ctx)
	took, meanwhile := time.Since(began), watched()
	b.Stop()
	if err != nil {
		return nil, err
	}
	f, err := Fit(ctx, base, m)
	if err != nil {
		return nil, err
	}
	f.Meanwhile = meanwhile
	fmt.Fprintf(c.Stdout, "%s: %d points in %d rounds, %v\n\n%s", f.Profile.Name, len(m.Points), c.Rounds, took.Round(time.Second), f)
	return f, Save(f.Profile, c.Out, c.Stdout)
}

// Save writes a profile to a file and says so; to none if it has no name.
func Save(p *engine.Profile, file string, said io.Writer) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(p, "", "  ")
	if err = errors.Join(err, os.WriteFile(file, append(text, '\n'), 0o644)); err != nil {
		return &config.Fault{Field: "Out", Err: config.FileError(file, err)}
	}
	_, err = fmt.Fprintf(said, "\nwritten: %s, which --profile of other commands takes\n", file)
	return err
}

// ask asks the held-back load at once, and says what else this machine did.
func (c *Config) ask(ctx context.Context, h *HeldBack) (*observe.Disturbance, error) {
	if err := h.Settle(ctx); err != nil {
		return nil, err
	}
	b := progress.New(c.Progress, c.Terminal)
	b.Say(fmt.Sprintf("%v, about %.0f s", h, float64(h.Load.Requests)/h.Load.Rate))
	b.Start(progress.State{What: "checking", Total: int64(h.Load.Requests), Unit: "requests"})
	watched := c.watch()
	h.Over = func() { b.Add(1) }
	err := h.Ask(ctx)
	meanwhile := watched()
	b.Stop()
	return meanwhile, err
}

// watching looks at this machine; in virtual time there is nothing to see, nor where it cannot be seen.
func watching(realTime bool, pids []int) func() func() *observe.Disturbance {
	unseen := func() *observe.Disturbance { return nil }
	return func() func() *observe.Disturbance {
		if !realTime {
			return unseen
		}
		w, err := observe.StartWatch(clock.Precise(), pids)
		if err != nil {
			return unseen
		}
		return func() *observe.Disturbance {
			d, _ := w.End() // who uses the CPUs may be unknown: timers say the most
			return d
		}
	}
}
