package rail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvferry/bench/observe"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/internal/progress"
	"kvferry/transport"
	"kvferry/transport/topology"
)

// ErrFaults: the run has batches that failed or blocks that are wrong.
var ErrFaults = errors.New("not sound")

// Run measures every point, prints the report and writes its files, after each point
// with what there is. When ctx is done, or the target has gone, it does so with the
// points it has and returns the error with the Result. Files that cannot be written
// are a document.OutputError.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	r := &Result{
		Command: cfg.Command, Started: time.Now(), Protocol: protocol, Points: []Point{},
		Initiator: End{Where: "this machine", Machine: observe.Describe()},
		Settings: Settings{
			Rails: cfg.Rails, DurationS: cfg.Duration.Seconds(), WarmupS: max(cfg.Warmup, 0).Seconds(), Segment: cfg.Segment,
			Slice: cfg.Slice, TimeoutS: cfg.Timeout.Seconds(), Check: cfg.Check, Seed: cfg.Seed,
			Latency: cfg.Latency, KV: cfg.kv,
		},
	}
	if cfg.Iterations > 0 {
		r.Settings.DurationS, r.Settings.Iterations = 0, cfg.Iterations
	}
	r.setLimit(&cfg, "/")
	err := measure(ctx, &cfg, r)
	if len(r.Points) == 0 && err != nil {
		return r, err // nothing to report
	}
	r.Interrupted = ctx.Err() != nil
	if err != nil && !r.Interrupted {
		r.Error = err.Error()
	}
	err = errors.Join(err, r.keep(&cfg))
	if failed, bad := r.Failures(); err == nil && failed+int(bad) > 0 {
		err = fmt.Errorf("%w: %d batches failed, %d blocks are wrong", ErrFaults, failed, bad)
	}
	return r, err
}

// setLimit settles what the rates are compared with.
func (r *Result) setLimit(cfg *Config, machine root) {
	n := len(cfg.Rails)
	r.Settings.LimitSource = "given"
	switch {
	case len(cfg.RailLimits) > 0:
		r.limit = func(count int) (sum float64) {
			for _, v := range cfg.RailLimits[:count] {
				sum += v
			}
			return sum
		}
	case cfg.Limit != 0:
		r.limit = func(count int) float64 { return cfg.Limit * float64(count) / float64(n) }
	default:
		r.Settings.LimitSource = "the NICs' own"
		r.limit = func(count int) float64 {
			rate, _ := machine.lineRate(cfg.Rails[:count])
			return rate
		}
	}
	if gbps := r.limit(n) / 1e9; gbps > 0 {
		r.Settings.LimitGBps = &gbps
	} else {
		r.Settings.LimitSource = ""
	}
}

// A session is the initiator's side of a connection to a target.
type session struct {
	cfg        *Config
	r          *Result
	clk        clock.Clock
	link       *link
	mem        []byte
	free       func() error          // gives mem back; nil before it is there
	info       transport.SegmentInfo // of the target's memory, over all of its rails
	setup      setup                 // of what follows
	points     int                   // measured so far
	initiators []initiator
	missing    map[string]struct{}       // of Config.Beside: what cannot be measured
	onPath     func(transport.PathEvent) // the engine's, or nil
}

// measure connects and measures the points into r. What it made is gone when it
// returns.
func measure(ctx context.Context, cfg *Config, r *Result) error {
	plans, unfit := cfg.plans()
	r.Notes = unfit
	return withSession(ctx, cfg, r, nil, func(ctx context.Context, s *session) error {
		shown := progress.New(cfg.Progress, cfg.Terminal)
		shown.Start(progress.State{What: "measuring", Total: int64(len(plans)), Unit: "points"})
		defer shown.Stop()
		for i := range plans {
			pl := &plans[i]
			shown.Describe(fmt.Sprintf("%v %s x %d, %d rails, %s", pl.Op, config.FormatSize(pl.Block), pl.Batch, pl.setup.count, pl.setup.sel))
			p, err := s.point(ctx, pl)
			if p != nil {
				r.Points = append(r.Points, *p)
				r.Interrupted = true            // unless Run gets to its end
				_ = r.document().Write(cfg.Out) // the last time's error counts
				shown.Add(1)
				shown.Log(p.line(len(r.Points), len(plans)))
			}
			if err == nil {
				err = s.references(ctx, pl)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// withSession connects to the target, has f use the session, and leaves nothing of
// it. f's context ends when the target has gone.
func withSession(ctx context.Context, cfg *Config, r *Result, onPath func(transport.PathEvent), f func(context.Context, *session) error) (err error) {
	s := &session{cfg: cfg, r: r, clk: clock.Precise(), onPath: onPath, missing: map[string]struct{}{}}
	if s.link, err = connect(ctx, cfg); err != nil {
		return err
	}
	defer func() {
		s.link.peer.close()
		err = errors.Join(err, s.shut())
		if s.free != nil {
			err = errors.Join(err, s.free())
		}
		err = errors.Join(err, s.link.close())
	}()
	ctx, gone := context.WithCancelCause(ctx)
	defer gone(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.link.peer.lost:
			gone(s.link.peer.err)
		case <-ctx.Done():
		}
	}()
	defer func() { gone(nil); <-watched }()
	if err := s.open(ctx); err != nil {
		return err
	}
	return f(ctx, s)
}

// patience is how long the target may take with all of its memory: 256 MiB/s, a
// tenth of what one core does, beyond Config.Timeout.
func (s *session) patience() time.Duration {
	return s.cfg.Timeout + time.Duration(s.cfg.Segment>>28)*time.Second
}

// open makes the memory at both ends.
func (s *session) open(ctx context.Context) (err error) {
	if s.mem, s.free, err = transport.MapMemory(int(s.cfg.Segment)); err != nil {
		return fmt.Errorf("mapping %s: %w", config.FormatSize(s.cfg.Segment), err)
	}
	if err := topology.Bind(s.mem, s.cfg.Location); err != nil {
		return err
	}
	// Both ends write their memory at the same time: a target waits for a hello no longer than helloTimeout.
	var written sync.WaitGroup
	written.Go(func() { warm(s.mem, s.cfg.Seed) })
	defer written.Wait()
	m, err := s.ask(ctx, &message{Type: "hello", Protocol: protocol, Segment: s.cfg.Segment, Seed: s.cfg.Seed}, "welcome")
	if err != nil {
		return err
	}
	if m.Protocol != protocol || m.Info == nil {
		return fmt.Errorf("%s speaks version %d of the protocol and this is %d: use the same kvferry at both ends", s.link.peer.name, m.Protocol, protocol)
	}
	s.r.Target = End{Where: s.link.where, Rails: m.Rails}
	if m.Machine != nil {
		s.r.Target.Machine = *m.Machine
	}
	s.info = *m.Info
	return nil
}

// use makes the engines of a setup, unless they are there.
func (s *session) use(to setup) error {
	if len(s.initiators) > 0 && s.setup == to {
		return nil
	}
	if err := s.shut(); err != nil {
		return err
	}
	s.setup = to
	for range to.peers {
		if err := s.join(to); err != nil {
			return err
		}
	}
	if used := s.rails(); len(used) > len(s.r.Initiator.Rails) {
		s.r.Initiator.Rails = nil
		for _, rail := range used {
			s.r.Initiator.Rails = append(s.r.Initiator.Rails, rail.Name+" at "+rail.Addr)
		}
	}
	return nil
}

// join makes one initiator more.
func (s *session) join(to setup) error {
	opened, err := s.link.open(to.first, to.count)
	if err != nil {
		return err
	}
	engine, err := newEngine(s.cfg.Matrix, transport.Config{
		Rails: opened, Clock: s.clk, SliceSize: s.cfg.Slice, Select: to.sel, OnPath: s.onPath, Logger: s.cfg.Logger,
	})
	if err != nil {
		return err
	}
	s.initiators = append(s.initiators, initiator{engine: engine}) // shut closes it
	if _, err := engine.Register("initiator", s.mem, s.cfg.Location); err != nil {
		return err
	}
	// A rail here goes with the one at its place there: the first of the target's
	// rails too, or one of these would reach the others by the system's routes.
	info := s.info
	from := min(to.first, len(info.Rails))
	info.Rails = info.Rails[from:min(from+to.count, len(info.Rails))]
	target, err := engine.Open(info)
	s.initiators[len(s.initiators)-1].target = target
	if errors.Is(err, transport.ErrNoPath) {
		return fmt.Errorf("%w: the target has %v, and these are %v: give both ends rails of one kind", err, s.r.Target.Rails, s.cfg.Rails)
	}
	return err
}

// shut closes the engines, if there are any, and their rails.
func (s *session) shut() (err error) {
	for _, i := range s.initiators {
		err = errors.Join(err, i.engine.Close())
	}
	s.initiators = nil
	return err
}

// rails are the counts of the initiators' rails: of several, what they have done together.
func (s *session) rails() []transport.RailStats {
	sum := s.initiators[0].engine.Rails()
	for _, i := range s.initiators[1:] {
		for k, r := range i.engine.Rails() {
			to := &sum[k]
			to.Write.Bytes, to.Write.Slices = to.Write.Bytes+r.Write.Bytes, to.Write.Slices+r.Write.Slices
			to.Read.Bytes, to.Read.Slices = to.Read.Bytes+r.Read.Bytes, to.Read.Slices+r.Read.Slices
			to.Errors, to.Retries, to.Resent = to.Errors+r.Errors, to.Retries+r.Retries, to.Resent+r.Resent
		}
	}
	return sum
}

func (s *session) ask(ctx context.Context, m *message, answer string) (*message, error) {
	return s.link.peer.ask(ctx, m, answer, s.patience())
}

// point measures one point. It returns what it has with an error.
func (s *session) point(ctx context.Context, p *plan) (*Point, error) {
	s.points++
	if err := s.use(p.setup); err != nil {
		return nil, err
	}
	if s.cfg.steady {
		if err := s.fit(ctx, p); err != nil {
			return nil, err
		}
	}
	l, err := s.prepare(ctx, p)
	if err != nil {
		return nil, err
	}
	if s.cfg.steady {
		l.meter = &rateMeter{Least: s.cfg.Duration, Most: steadyMost * s.cfg.Duration}
	}
	before := s.rails()
	out := &Point{
		Op: p.Op.String(), Block: p.Block, Batch: p.Batch, Threads: p.Threads / p.setup.peers, Depth: p.Depth,
		Count: p.setup.count, Select: string(p.setup.sel), Peers: p.setup.peers, Imm: p.imm,
	}
	var w interval
	d, err := s.run(ctx, l, &out.CPU, &w)
	out.record(l, d, s.r.limit(p.setup.count))
	out.Rails, out.RailsS = railUse(before, s.rails(), &w), (w.shut - w.opened).Seconds()
	if ctx.Err() != nil {
		out.Interrupted = true
		return out, context.Cause(ctx)
	}
	if err == nil {
		err = l.nothing() // the points to come would each take as long to say the same
	}
	if err != nil || !p.Check {
		return out, err
	}
	v, err := s.check(ctx, p, l)
	if err != nil {
		return out, err
	}
	out.Checked, out.Bad, out.BadAt = &v.Checked, &v.Bad, v.First
	return out, nil
}

// prepare fills the source of a point and tells the target of it. The engines of its setup are there.
func (s *session) prepare(ctx context.Context, p *plan) (*load, error) {
	if p.Check && p.Op == transport.Write {
		eachThread(p.Threads, func(i int) { p.source(s.mem, i) })
	}
	_, err := s.ask(ctx, &message{Type: "point", Plan: p}, "ready")
	return newLoad(p, s.clk, s.initiators, s.mem, s.cfg.Timeout), err
}

// nothing returns the error of a load of which no byte was transferred.
func (l *load) nothing() error {
	if _, failed := l.errors(); failed != nil && l.moved.Load() == 0 {
		return fmt.Errorf("nothing was transferred: %w", failed)
	}
	return nil
}

// steadyMost is how much longer than Config.Duration a point of Config.steady takes at the most.
const steadyMost = 10

// fit finds out how large the blocks of a point of Config.steady may be, by small ones that nobody
// compares.
func (s *session) fit(ctx context.Context, p *plan) error {
	small := *p
	small.Block, small.Check = min(p.Block, leastBlock), false
	l, err := s.prepare(ctx, &small)
	if err != nil {
		return err
	}
	l.meter = &rateMeter{Least: s.cfg.Duration / steadyMost, Most: 2 * s.cfg.Duration}
	if _, err = s.run(ctx, l, &CPU{}, &interval{}); err == nil {
		err = l.nothing()
	}
	rate, _ := l.meter.Rate()
	p.Block = min(p.Block, rateBlock(rate))
	return err
}

// arrived are the bytes that have reached their destination so far.
func (s *session) arrived() (sum int64) {
	for _, r := range s.rails() {
		sum += r.Write.Bytes + r.Read.Bytes
	}
	return sum
}

func (s *session) check(ctx context.Context, p *plan, l *load) (verdict, error) {
	if p.Op == transport.Read {
		return p.check(s.mem, l.landings())
	}
	m, err := s.ask(ctx, &message{Type: "check", Landed: l.landings()}, "verdict")
	if err != nil {
		return verdict{}, err
	}
	if m.Verdict == nil {
		return verdict{}, fmt.Errorf("%s sent no verdict", s.link.peer.name)
	}
	return *m.Verdict, nil
}

// run moves the load through warm-up and interval, or its iterations, until nothing
// is under way, and returns the time that counts.
func (s *session) run(ctx context.Context, l *load, cpu *CPU, w *interval) (counted time.Duration, err error) {
	mark := func(sign float64) error {
		m, err := s.ask(ctx, &message{Type: "mark"}, "usage")
		if err == nil {
			cpu.Target += sign * m.CPU
			cpu.Initiator += sign * cpuSeconds()
			cpu.Bytes += int64(sign) * l.moved.Load()
		}
		return err
	}
	defer func() {
		l.halt.Store(true)
		l.wait()
	}()
	l.start(ctx)
	if m := l.meter; m != nil {
		first := s.arrived()
		l.open.Store(int64(s.clk.Now()))
		m.Watch(ctx, l.failed, s.clk.Now, func() int64 { return s.arrived() - first }, l.window.Store)
		_, counted = m.Rate()
		return counted, nil
	}
	Sleep(ctx, l.failed, max(s.cfg.Warmup, 0))
	if s.cfg.Iterations > 0 {
		l.halt.Store(true)
		l.wait()
		l.again(s.cfg.Iterations)
	}
	select {
	case <-l.failed:
		return 0, nil // recorded by the threads
	default:
	}
	if err := mark(-1); err != nil {
		return 0, err
	}
	open := s.clk.Now()
	w.opened, w.first = open, s.rails()
	if s.cfg.Iterations > 0 {
		l.slot = 100 * time.Millisecond
		l.open.Store(int64(open))
		l.start(ctx)
		l.wait()
		counted = l.last() - open
	} else {
		l.slot = s.cfg.Duration / 10
		l.shut.Store(int64(open + s.cfg.Duration))
		l.open.Store(int64(open))
		Sleep(ctx, l.failed, s.cfg.Duration-(s.clk.Now()-open))
		counted = min(s.cfg.Duration, s.clk.Now()-open)
	}
	w.shut, w.last = s.clk.Now(), s.rails()
	if ctx.Err() == nil {
		err = mark(1)
	}
	if ctx.Err() != nil || err != nil {
		*cpu = CPU{} // half of it
		return counted, err
	}
	if cpu.Bytes > 0 {
		cpu.PerGB = (cpu.Initiator + cpu.Target) / float64(cpu.Bytes) * 1e9
	}
	return counted, err
}
