package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// WANConfig describes a run on links that are long or lose packets, four of them: the rails
// together, held to limits.
type WANConfig struct {
	Cases    []string      // by name; default all
	Rounds   int           // of each, of which figures are medians; default 5
	Duration time.Duration // of a rate; default 6 s
	Warmup   time.Duration // before it, for windows to grow; default 2 s
	// Options are those of each rail's spec, "congestion=bbr". Default none.
	Options  string
	Beside   []string // others on the same links, "mptcp" and "ucx"; default none
	Out      string   // folder of wan.json and the failover reports; default none
	Stdout   io.Writer
	Progress io.Writer
	Exe      string // kvferry's file; default this program
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *WANConfig) Validate() error {
	var bad config.Faults
	if _, err := ParseWANCases(strings.Join(c.Cases, ",")); err != nil {
		bad.Check("Cases", err)
	}
	checkRounds(&bad, c.Rounds, c.Duration, c.Warmup)
	checkBeside(&bad, c.Beside)
	return bad.Err("bench/nics.WANConfig")
}

// WAN runs the cases in turns, prints their table and holds them to their limits. When ctx
// is done it does so with what it has.
func WAN(ctx context.Context, cfg WANConfig) (*WANResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Rounds, 5)
	config.Default(&cfg.Duration, 6*time.Second)
	config.Default(&cfg.Warmup, 2*time.Second)
	if err := surround(&cfg.Stdout, &cfg.Progress, &cfg.Exe); err != nil {
		return nil, err
	}
	if len(cfg.Cases) == 0 {
		cfg.Cases = wanNames()
	}
	x := &wanRun{cfg: &cfg, r: &WANResult{Started: time.Now(), Machine: observe.Describe(), Rounds: cfg.Rounds, Cases: cfg.Cases}}
	for _, p := range peers {
		if slices.Contains(cfg.Beside, p.flag) {
			if err := p.absent(); err != nil {
				x.r.Notes = append(x.r.Notes, fmt.Sprintf("%s was not measured: %v", p.name, err))
			} else {
				x.peers = append(x.peers, p)
			}
		}
	}
	err := x.rounds(ctx)
	err = errors.Join(context.Cause(ctx), err)
	x.r.Seconds = time.Since(x.r.Started).Seconds()
	if err != nil && len(x.r.Points)+len(x.r.Failovers) == 0 {
		return x.r, err // nothing to report
	}
	err = errors.Join(err, x.r.document().Keep(cfg.Stdout, cfg.Out))
	if err == nil {
		err = judged(x.r.Rows)
	}
	return x.r, err
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
			return x.keepRate(round, c, newWANPoint(c, p.name, Point{Ideal: c.ideal(), GBps: rate / 1e9})), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// keepRate keeps a rate once it is known whether it was disturbed.
func (x *wanRun) keepRate(round int, c *wanCase, p WANPoint) func(Notice) {
	return func(n Notice) {
		p.Round, p.Notice = round, n
		x.r.Points = append(x.r.Points, p)
		fmt.Fprintf(x.cfg.Progress, "round %d/%d %s: %s %.4f GB/s, %.1f %% of ideal, %s\n", round, x.cfg.Rounds, c.name, p.By, p.GBps, p.Percent, n)
	}
}

// kvferry runs what the case asks for with the transport engine, and returns what keeps the result
// once it is known whether it was disturbed.
func (x *wanRun) kvferry(ctx context.Context, l *lab.Lab, round int, c *wanCase) (keep func(Notice), err error) {
	specs := c.specs(x.cfg.Options)
	args := []string{x.cfg.Exe, "rail", "bench", "--server", "--listen", lab.ManagementAddress(1) + ":" + port, "--segment", segment}
	server, err := start(ctx, l, 1, proc.Cmd{Args: append(args, railFlags(specs)...), Announce: serving})
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	if c.schedule != nil {
		return x.failover(ctx, l, round, c, specs)
	}
	defer holes(ctx, l, c)()
	p, err := x.transfer(ctx, l, round, c, specs)
	return x.keepRate(round, c, p), err
}

// specs are the rails of a case.
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

// transfer measures the rate of kvferry rail bench.
func (x *wanRun) transfer(ctx context.Context, l *lab.Lab, round int, c *wanCase, specs []string) (WANPoint, error) {
	args := append([]string{
		x.cfg.Exe, "rail", "bench", lab.ManagementAddress(1) + ":" + port, "--format", "json", "--check", "--limit", "none", "--segment", segment,
		"--block", wanBlock, "--batch", wanBatch, "--depth", wanDepth, "--timeout", "30s",
		"--duration", c.duration(x.cfg.Duration).String(), "--warmup", x.cfg.Warmup.String(),
	}, railFlags(specs)...)
	if x.cfg.Out != "" {
		args = append(args, "--out", filepath.Join(x.cfg.Out, fmt.Sprintf("%s%d", c.name, round)))
	}
	text, err := output(ctx, l, 2, args...)
	if err != nil {
		return WANPoint{}, err
	}
	var got rail.Result
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return WANPoint{}, fmt.Errorf("kvferry rail bench printed no result: %w", err)
	}
	if len(got.Points) != 1 {
		return WANPoint{}, fmt.Errorf("kvferry rail bench printed %d points, not one", len(got.Points))
	}
	return newWANPoint(c, kvferry, point(Key{}, c.ideal(), &got.Points[0])), nil
}

// duration is how long a rate is measured: with black holes, for whole periods.
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

// failover runs the schedule of a case.
func (x *wanRun) failover(ctx context.Context, l *lab.Lab, round int, c *wanCase, specs []string) (keep func(Notice), err error) {
	journal, err := os.CreateTemp("", "kvferry-wan")
	if err != nil {
		return nil, err
	}
	defer os.Remove(journal.Name())
	defer journal.Close()
	f := failover{exe: x.cfg.Exe, specs: specs, faults: journal.Name(), schedule: journaled(c.schedule, journal), end: c.end}
	if x.cfg.Out != "" {
		f.out = filepath.Join(x.cfg.Out, fmt.Sprintf("%s%d", c.name, round))
	}
	got, ended, err := f.run(ctx, l)
	if err != nil {
		return nil, err
	}
	if ended != nil {
		x.r.Notes = append(x.r.Notes, fmt.Sprintf("round %d, %s: %v", round, c.name, ended))
	}
	return func(n Notice) {
		x.r.Failovers = append(x.r.Failovers, WANFailover{Case: c.name, Round: round, Notice: n, FailoverResult: got})
		fmt.Fprintf(x.cfg.Progress, "round %d/%d %s: %d faults, %d blocks checked, %d bad, %s\n", round, x.cfg.Rounds, c.name, len(got.Recoveries), got.Checked, got.Bad, n)
	}, ctx.Err()
}

// journaled is the schedule, each step of which is written down when it begins.
func journaled(schedule []happening, to io.Writer) (all []happening) {
	for _, h := range schedule {
		do := h.do
		h.do = func(l *lab.Lab) error {
			line, err := json.Marshal(map[string]any{"unix_ns": time.Now().UnixNano(), "action": h.action, "nic": h.nic})
			if err == nil {
				_, err = to.Write(append(line, '\n'))
			}
			if err == nil {
				err = do(l)
			}
			return err
		}
		all = append(all, h)
	}
	return all
}
