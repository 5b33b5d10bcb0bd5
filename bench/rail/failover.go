package rail

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"kvferry/bench/observe"
	"kvferry/internal/config"
	"kvferry/internal/progress"
	"kvferry/transport"
)

// A FailoverConfig describes a run that loads rails while something else does their
// links harm: a lab's faults, or a hand. Config's fields have their meaning, with one
// value where a sweep has a list; Counts, Ops, Check, Iterations, Corrupt and limits
// are not for it.
type FailoverConfig struct {
	Config
	// Sample is the distance of two readings of the rails' counts. Default 10 ms.
	Sample time.Duration
	// Faults are what will happen, where it is known before.
	Faults []Annotation
	// FaultFile is what a lab writes of its faults as they happen, JSON lines as
	// [recovery.ReadFaults] reads them. It is read at the end.
	FaultFile string
}

// Loading is the line on Stdout that says that the load counts from now; a lab's
// faults can wait for it.
const Loading = "LOADING"

func (c *FailoverConfig) setDefaults() {
	list(&c.Blocks, 256<<10)
	list(&c.Depths, 8)
	config.Default(&c.Duration, 8*time.Second)
	config.Default(&c.Slice, 256<<10) // a sample's bytes are whole slices
	config.Default(&c.Sample, 10*time.Millisecond)
	config.Default(&c.Timeout, 30*time.Second)
	c.Check = true
	c.Config.setDefaults()
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *FailoverConfig) Validate() error {
	var bad config.Faults
	bad.Check("", c.Config.Validate())
	for _, l := range []struct {
		name string
		n    int
	}{{"Blocks", len(c.Blocks)}, {"Batches", len(c.Batches)}, {"Threads", len(c.Threads)}, {"Depths", len(c.Depths)}, {"Selects", len(c.Selects)}} {
		bad.Refuse(l.n > 1, l.name, l.n, "it is one run: give one value")
	}
	bad.Refuse(c.Format != "" && c.Format != Text, "Format", c.Format, "text is all there is, and files have the rest")
	bad.Refuse(c.Sample != 0 && c.Sample < time.Millisecond, "Sample", c.Sample, "use 1ms or more")
	bad.Refuse(len(c.Faults) > 0 && c.FaultFile != "", "FaultFile", c.FaultFile, "faults are given one by one too: leave one out")
	for i, f := range c.Faults {
		field := fmt.Sprintf("Faults[%d]", i)
		switch {
		case len(c.Rails) == 0: // said already
		case f.Rail >= len(c.Rails):
			bad.Add(field, f, "it is of rail %d: use 0 to %d, the rails in their order", f.Rail, len(c.Rails)-1)
		case i > 0 && f.At <= c.Faults[i-1].At:
			bad.Add(field, f, "it does not come after the one before: put them in order")
		}
	}
	return bad.Err("bench/rail.FailoverConfig")
}

// Failover loads the rails for Duration, then checks every byte of the target's
// memory, prints the report and writes its files. Interrupted, it does so with what
// it has, without the check.
func Failover(ctx context.Context, cfg FailoverConfig) (*FailoverResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &FailoverResult{
		Command: cfg.Command, Started: time.Now(), Initiator: End{Where: "this machine", Machine: observe.Describe()},
		Select: cfg.Selects[0], Block: cfg.Blocks[0], Batch: cfg.Batches[0], Threads: cfg.Threads[0], Depth: cfg.Depths[0],
		Slice: cfg.Slice, Segment: cfg.Segment, Seed: cfg.Seed,
	}
	err := cfg.measure(ctx, r)
	if len(r.Samples) == 0 && err != nil {
		return r, err
	}
	r.Interrupted = ctx.Err() != nil
	faults := cfg.Faults
	if cfg.FaultFile != "" {
		var e error
		if faults, e = readFaultFile(cfg.FaultFile, r.Began); e != nil {
			err = errors.Join(err, e)
		}
	}
	r.Recoveries = Recoveries(r.Samples, faults, r.Changes, r.Names)
	if err != nil && !r.Interrupted {
		r.Error = err.Error()
	}
	err = errors.Join(err, r.document().Keep(cfg.Stdout, cfg.Out))
	if err == nil && !r.Sound() {
		err = fmt.Errorf("%w: %d batches failed, %d blocks are wrong, rails counted %d bytes and batches %d", ErrFaults, r.Errors, r.Bad, r.Counted, r.Bytes)
	}
	return r, err
}

func readFaultFile(name string, began time.Time) ([]Annotation, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the lab's faults: %w", err)
	}
	defer f.Close()
	faults, err := ReadFaults(f, began)
	if err != nil {
		return faults, fmt.Errorf("the lab's faults, %s: %w", name, err)
	}
	return faults, nil
}

// measure connects, loads and checks. What it made is gone when it returns.
func (c *FailoverConfig) measure(ctx context.Context, r *FailoverResult) (err error) {
	plans, unfit := c.plans()
	if len(plans) != 1 {
		return fmt.Errorf("%v", unfit) // Validate has seen to it
	}
	p := &plans[0]
	p.Rounds = true
	var mu sync.Mutex
	var events []transport.PathEvent
	return withSession(ctx, &c.Config, &Result{}, func(e transport.PathEvent) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}, func(ctx context.Context, s *session) error {
		if err := s.use(p.setup); err != nil {
			return err
		}
		r.Initiator.Rails = s.r.Initiator.Rails
		r.Target = s.r.Target
		for _, rail := range s.rails() {
			r.Names = append(r.Names, rail.Name)
		}
		l, err := s.prepare(ctx, p)
		if err != nil {
			return err
		}
		from := c.load(ctx, r, s, l)
		mu.Lock()
		for _, e := range events {
			change := pathChange{At: e.At - from, Rail: e.Rail, Peer: e.Peer, State: e.State}
			if e.Err != nil {
				change.Err = e.Err.Error()
			}
			r.Changes = append(r.Changes, change)
		}
		mu.Unlock()
		var failed error
		if r.Errors, failed = l.errors(); failed != nil {
			r.FirstError = failed.Error()
		}
		r.Bytes = l.moved.Load()
		for _, rail := range s.rails() {
			r.Counted += rail.Write.Bytes
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		v, err := s.check(ctx, p, l)
		if err != nil {
			return err
		}
		r.Checked, r.Bad, r.BadAt = v.Checked, v.Bad, v.First
		return nil
	})
}

// load runs the threads for the warm-up and Duration, and reads the rails' counts all
// the while. It returns the moment from which on they count, by the engine's clock,
// when nothing is under way any more.
func (c *FailoverConfig) load(ctx context.Context, r *FailoverResult, s *session, l *load) (from time.Duration) {
	l.start(ctx)
	defer l.wait()
	defer l.halt.Store(true)
	if !Sleep(ctx, l.failed, max(c.Warmup, 0)) {
		return s.clk.Now()
	}
	first := s.rails()
	from, r.Began = s.clk.Now(), time.Now()
	fmt.Fprintf(c.Stdout, "%s %d rails for %v, faults count from here\n", Loading, len(first), c.Duration)
	shown := progress.New(c.Progress, c.Terminal)
	shown.Start(progress.State{What: "loading", Total: c.Duration.Milliseconds()})
	defer shown.Stop()
	tick := time.NewTicker(c.Sample)
	defer tick.Stop()
	for {
		now := s.rails()
		sample := Sample{At: s.clk.Now() - from}
		for i := range now {
			sample.Bytes = append(sample.Bytes, now[i].Write.Bytes-first[i].Write.Bytes)
			sample.Resent = append(sample.Resent, now[i].Resent-first[i].Resent)
		}
		r.Samples = append(r.Samples, sample)
		if sample.At >= c.Duration {
			return from
		}
		shown.Set(sample.At.Milliseconds())
		select {
		case <-tick.C:
		case <-l.failed:
			return from
		case <-ctx.Done():
			return from
		}
	}
}

// Sleep waits for d, and reports whether neither the end of ctx nor of failed cut it short.
func Sleep(ctx context.Context, failed <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-failed:
	case <-ctx.Done():
	}
	return false
}
