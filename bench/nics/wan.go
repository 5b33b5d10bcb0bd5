package nics

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/internal/config"
	lab "kvferry/lab/nics"
)

// WANConfig describes a run on links that are long or lose packets, four of them: the rails
// together, held to limits.
type WANConfig struct {
	Config
	Cases  []string      // by name; default all
	Warmup time.Duration // before a rate is measured, for windows to grow
	// Options go behind the ? of each rail's spec: "congestion=bbr". Default none.
	Options string
	Beside  []string // others on the same links, "mptcp" and "ucx"; default none
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *WANConfig) Validate() error {
	var bad config.Faults
	_, err := ParseWANCases(strings.Join(c.Cases, ","))
	bad.Check("Cases", err)
	c.check(&bad)
	bad.Refuse(c.Warmup < 0, "Warmup", c.Warmup, "use 0s or more")
	checkBeside(&bad, c.Beside)
	return bad.Err("bench/nics.WANConfig")
}

// WAN runs the cases in turns, prints their table and holds them to their limits. When ctx
// is done it does so with what it has.
func WAN(ctx context.Context, cfg WANConfig) (*WANResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := cfg.begin()
	if err != nil {
		return nil, err
	}
	if len(cfg.Cases) == 0 {
		cfg.Cases = wanNames()
	}
	x := &wanRun{cfg: &cfg, r: &WANResult{outcome: o, Cases: cfg.Cases}}
	for _, p := range peers {
		if slices.Contains(cfg.Beside, p.flag) {
			if err := p.absent(); err != nil {
				x.r.Notes = append(x.r.Notes, fmt.Sprintf("%s was not measured: %v", p.name, err))
			} else {
				x.peers = append(x.peers, p)
			}
		}
	}
	err = x.rounds(ctx)
	return x.r, cfg.end(ctx, err, &x.r.outcome, len(x.r.Points)+len(x.r.Failovers) > 0, x.r.document, func() error { return judged(x.r.Rows) })
}

type wanRun struct {
	cfg   *WANConfig
	r     *WANResult
	peers []peer // that are there
}

func (x *wanRun) rounds(ctx context.Context) error {
	for round := 1; round <= x.cfg.Rounds; round++ {
		for i := range wanCases {
			c := &wanCases[i]
			if !slices.Contains(x.cfg.Cases, c.name) {
				continue
			}
			if err := x.measure(ctx, round, c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			_ = x.r.document().Write(x.cfg.Out) // an error is one at the end too
		}
	}
	return nil
}

// measure runs a case with the rails, and where it is a rate with the others too.
func (x *wanRun) measure(ctx context.Context, round int, c *wanCase) error {
	l := lab.Config{Rates: c.links, Conditions: c.conditions, Seed: uint64(round), Timeout: time.Hour}
	err := inLab(ctx, l, false, func(ctx context.Context, l *lab.Lab) (func(Notice), error) { return x.kvferry(ctx, l, round, c) })
	if err != nil || c.schedule != nil {
		return err
	}
	// Each host's default may be another, and is where a socket has not asked for one.
	l.MPTCP, l.Congestion = noMPTCP() == nil, "cubic"
	for _, p := range x.peers {
		err := inLab(ctx, l, p.spins, func(ctx context.Context, l *lab.Lab) (func(Notice), error) {
			defer holes(ctx, l, c)()
			rate, err := p.rate(ctx, l, x.cfg.Warmup, c.duration(x.cfg.Duration))
			return x.keepRate(round, c, p.name, Rate{Ideal: c.ideal(), GBps: rate / 1e9}), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// keepRate returns a function that adds the rate to the result, with what the machine did meanwhile.
func (x *wanRun) keepRate(round int, c *wanCase, by string, r Rate) func(Notice) {
	return func(n Notice) {
		p := WANPoint{Case: c.name, By: by, Round: round, Rate: r, Percent: r.percent(), Notice: n}
		x.r.Points = append(x.r.Points, p)
		fmt.Fprintf(x.cfg.Progress, "round %d/%d %s: %s %.4f GB/s, %.1f %% of ideal, %s\n", round, x.cfg.Rounds, c.name, p.By, p.GBps, p.Percent, n)
	}
}

// kvferry runs what the case asks for with the transport engine, and returns what keeps the result
// once it is known whether it was disturbed.
func (x *wanRun) kvferry(ctx context.Context, l *lab.Lab, round int, c *wanCase) (keep func(Notice), err error) {
	specs, name := c.specs(x.cfg.Options), fmt.Sprintf("%s%d", c.name, round)
	server, err := x.cfg.serve(ctx, l, port, specs)
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	if c.schedule == nil {
		defer holes(ctx, l, c)()
		points, err := x.cfg.bench(
			ctx, l, port, name, 1, specs, "--block", wanBlock, "--batch", wanBatch, "--depth", wanDepth, "--timeout", "30s",
			"--duration", c.duration(x.cfg.Duration).String(), "--warmup", x.cfg.Warmup.String(),
		)
		if err != nil {
			return nil, err
		}
		return x.keepRate(round, c, kvferry, measuredRate(c.ideal(), &points[0])), nil
	}
	got, failed, err := x.cfg.failover(ctx, l, name, specs, c.schedule, c.end)
	if err != nil {
		return nil, err
	}
	if failed != nil {
		x.r.Notes = append(x.r.Notes, fmt.Sprintf("round %d, %s: %v", round, c.name, failed))
	}
	return func(n Notice) {
		x.r.Failovers = append(x.r.Failovers, WANFailover{Case: c.name, Round: round, Notice: n, FailoverResult: got})
		fmt.Fprintf(x.cfg.Progress, "round %d/%d %s: %d faults, %d blocks checked, %d bad, %s\n", round, x.cfg.Rounds, c.name, len(got.Recoveries), got.Checked, got.Bad, n)
	}, ctx.Err()
}

// specs returns the rails of a case.
func (c *wanCase) specs(options string) (all []string) {
	if options != "" {
		options = "?" + options
	}
	for nic := range c.links {
		all = append(all, "tcp/"+lab.Name(nic)+options)
	}
	return all
}

// The load of all cases: enough under way for RTT 100 ms, in blocks of a few layers' KV.
const (
	wanBlock = "256k"
	wanBatch = "16"
	wanDepth = "8"
)

// duration rounds the time for which a rate is measured up to whole periods of black holes, three at least, if
// the case has these.
func (c *wanCase) duration(d time.Duration) time.Duration {
	if c.holed {
		d = max((d+holePeriod-1)/holePeriod, 3) * holePeriod
	}
	return d
}

// holes has one link after the other be a black hole for half of each period, until stop is called.
func holes(ctx context.Context, l *lab.Lab, c *wanCase) (stop func()) {
	if !c.holed {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(holePeriod / 2)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			nic, do := n/2%len(c.links), l.BlackHole
			if n%2 == 1 {
				do = l.Clear
			}
			if do(nic) != nil { // the lab is over
				return
			}
		}
	}()
	return func() { cancel(); <-over }
}
