package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"kvferry/bench/incast"
	"kvferry/bench/observe"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
	"kvferry/transport"
)

// IncastConfig describes a run of many initiators and one target, whose NIC they share: how evenly,
// and how long something small waits meanwhile, held to limits.
type IncastConfig struct {
	Ops         []string      // "write", "read"; default both
	Initiators  int           // default 16
	Rate        int64         // bits a second of the target's NIC; default 500 Mbit/s
	SwitchQueue int           // bytes of the queue of the switch port in front of it; default 512 KiB
	Rounds      int           // of each case, of which figures are medians; default 3
	Duration    time.Duration // of what is measured; default 6 s
	Warmup      time.Duration // before it; default 2 s
	Options     string        // of the target's and the initiators' rails, "congestion=bbr"; default none
	Out         string        // folder of incast.json; default none
	Stdout      io.Writer
	Progress    io.Writer
	Exe         string // kvferry's file; default this program
}

// maxInitiators is as many as host 2 may have addresses, less that of the probe.
const maxInitiators = 249

// Validate lists every fault by its field, as a [config.Invalid].
func (c *IncastConfig) Validate() error {
	var bad config.Faults
	for _, op := range c.Ops {
		bad.Refuse(op != transport.Write.String() && op != transport.Read.String(), "Ops", op, "use some of %v, %v", transport.Write, transport.Read)
	}
	if c.Initiators != 0 {
		config.Between(&bad, "Initiators", c.Initiators, 2, maxInitiators)
	}
	checkRounds(&bad, c.Rounds, c.Duration, c.Warmup)
	bad.Refuse(c.Rate != 0 && (c.Rate < 1e5 || c.Rate > 1e11), "Rate", c.Rate, "use 100kbit to 100gbit")
	if c.SwitchQueue != 0 {
		config.Between(&bad, "SwitchQueue", c.SwitchQueue, lab.LeastSwitchQueue, lab.MostSwitchQueue)
	}
	return bad.Err("bench/nics.IncastConfig")
}

// An incastCase is one way in which many meet at one NIC, and what it must come to.
type incastCase struct {
	name, what string
	op         transport.Op
	behind     bool    // they meet at a switch's port, not at a NIC's own queue
	share      float64 // least/most, at least; 0: no limit
	wait       float64 // ms of the probe, p99, at most; 0: no limit
}

var incastCases = []incastCase{
	{name: "write", what: "at the queue of one sending NIC", op: transport.Write, share: 0.8, wait: 15},
	{name: "write-switch", what: "at the switch port to the target", op: transport.Write, behind: true, share: 0.8, wait: 15},
	{name: "read", what: "at the target's NIC", op: transport.Read, share: 0.8, wait: 45},
	{name: "read-switch", what: "at a switch port behind it", op: transport.Read, behind: true},
}

// Incast runs the cases in turns, prints their table and holds them to their limits. When ctx is
// done it does so with what it has.
func Incast(ctx context.Context, cfg IncastConfig) (*IncastResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Initiators, 16)
	config.Default(&cfg.Rate, half)
	config.Default(&cfg.SwitchQueue, 512<<10)
	config.Default(&cfg.Rounds, 3)
	config.Default(&cfg.Duration, 6*time.Second)
	config.Default(&cfg.Warmup, 2*time.Second)
	if len(cfg.Ops) == 0 {
		cfg.Ops = []string{transport.Write.String(), transport.Read.String()}
	}
	if err := surround(&cfg.Stdout, &cfg.Progress, &cfg.Exe); err != nil {
		return nil, err
	}
	r := &IncastResult{Started: time.Now(), Machine: observe.Describe(), Rounds: cfg.Rounds, Initiators: cfg.Initiators, Rate: cfg.Rate, SwitchQueue: cfg.SwitchQueue}
	for _, c := range incastCases {
		if slices.Contains(cfg.Ops, c.op.String()) {
			r.Cases = append(r.Cases, c.name)
		}
	}
	err := cfg.rounds(ctx, r)
	err = errors.Join(context.Cause(ctx), err)
	r.Seconds = time.Since(r.Started).Seconds()
	if err != nil && len(r.Points) == 0 {
		return r, err // nothing to report
	}
	err = errors.Join(err, r.document().Keep(cfg.Stdout, cfg.Out))
	if err == nil {
		err = r.missed()
	}
	return r, err
}

func (cfg *IncastConfig) rounds(ctx context.Context, r *IncastResult) error {
	for round := 1; round <= cfg.Rounds; round++ {
		for i := range incastCases {
			c := &incastCases[i]
			if !slices.Contains(r.Cases, c.name) {
				continue
			}
			l := lab.Config{Rates: []int64{cfg.Rate}, Addresses: cfg.Initiators + 1, Timeout: time.Hour}
			if c.behind {
				l.SwitchQueue = cfg.SwitchQueue
			}
			err := inLab(ctx, l, false, func(ctx context.Context, l *lab.Lab) (func(Notice), error) {
				s, err := cfg.measure(ctx, l, c)
				return func(n Notice) {
					p := newIncastPoint(c, round, Ideal([]int64{cfg.Rate}), s, n)
					r.Points = append(r.Points, p)
					fmt.Fprintf(cfg.Progress, "round %d/%d %s: %.1f %% of ideal, least/most %.2f, probe p99 %.1f ms, %s\n", round, cfg.Rounds, c.name, p.Percent, p.MinMax, p.P99MS, n)
				}, err
			})
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			_ = r.document().Write(cfg.Out) // an error is one at the end too
		}
	}
	return nil
}

// The load of all cases: each initiator has a megabyte under way, as one that fetches a prompt's KV has.
const (
	incastBlock = 256 << 10
	incastDepth = 4
)

// IncastTarget and IncastLoad are the commands below kvferry lab nics that a run starts on its hosts: the
// one with an address and the number of initiators, the other with an incast.Load as JSON.
const (
	IncastTarget = "incast-target"
	IncastLoad   = "incast-load"
)

// measure runs a case: the target on host 1, the initiators and the probe on host 2.
func (cfg *IncastConfig) measure(ctx context.Context, l *lab.Lab, c *incastCase) (*incast.Sample, error) {
	target, err := start(ctx, l, 1, proc.Cmd{Args: []string{cfg.Exe, "lab", "nics", IncastTarget, lab.Address(1, 0), strconv.Itoa(cfg.Initiators), cfg.Options}, Announce: "{"})
	if err != nil {
		return nil, err
	}
	defer target.Stop()
	from := lab.Addresses(2, 0, cfg.Initiators+1)
	load := incast.Load{
		Op: c.op, From: from[:cfg.Initiators], Probe: from[cfg.Initiators], Options: cfg.Options,
		Block: incastBlock, Depth: incastDepth, Warmup: cfg.Warmup, Duration: cfg.Duration,
	}
	if err := json.Unmarshal([]byte(target.Hello), &load.Target); err != nil {
		return nil, fmt.Errorf("kvferry lab nics %s said no address: %w", IncastTarget, err)
	}
	asked, err := json.Marshal(&load)
	if err != nil {
		return nil, err
	}
	text, err := output(ctx, l, 2, cfg.Exe, "lab", "nics", IncastLoad, string(asked))
	if err != nil {
		return nil, err
	}
	s := &incast.Sample{}
	if err := json.Unmarshal([]byte(text), s); err != nil {
		return nil, fmt.Errorf("kvferry lab nics %s printed no result: %w", IncastLoad, err)
	}
	return s, nil
}

func newIncastPoint(c *incastCase, round int, ideal float64, s *incast.Sample, n Notice) IncastPoint {
	var sum int64
	for _, b := range s.Bytes {
		sum += b
	}
	rate := float64(sum) / s.Seconds
	return IncastPoint{Case: c.name, Round: round, GBps: rate / 1e9, Percent: 100 * rate / ideal, Sample: s, Notice: n}
}
