package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// ErrMissed: a figure is not what it must be.
var ErrMissed = errors.New("missed")

// Config describes a run of all experiments.
type Config struct {
	// Rounds of each experiment, of which figures are medians. Default 3.
	Rounds int
	// Duration is how long a transfer is measured. Default 1.5 s.
	Duration time.Duration
	// Out is a folder for nics.json, and the failover reports of each round. Default
	// none.
	Out      string
	Stdout   io.Writer // the tables, default none
	Progress io.Writer // a line an experiment, default none
	// Exe is kvferry's file. Default this program.
	Exe string
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	checkRounds(&bad, c.Rounds, c.Duration, 0)
	return bad.Err("bench/nics.Config")
}

// checkRounds checks how often and for how long something is measured; 0 is the default.
func checkRounds(bad *config.Faults, rounds int, duration, warmup time.Duration) {
	if rounds != 0 {
		config.Between(bad, "Rounds", rounds, 1, 99)
	}
	bad.Refuse(duration != 0 && duration < 100*time.Millisecond, "Duration", duration, "use 100ms or more")
	bad.Refuse(warmup < 0, "Warmup", warmup, "use 0s or more")
}

// surround gives a run what it needs besides its experiments, where the caller has not: writers
// that drop everything, and this program's file.
func surround(stdout, progress *io.Writer, exe *string) (err error) {
	for _, w := range []*io.Writer{stdout, progress} {
		config.Default(w, io.Discard)
	}
	if *exe == "" {
		*exe, err = os.Executable()
	}
	return err
}

// Run runs the experiments in turns, prints their tables and holds them to their
// limits. When ctx is done it does so with what it has.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Rounds, 3)
	config.Default(&cfg.Duration, 1500*time.Millisecond)
	if err := surround(&cfg.Stdout, &cfg.Progress, &cfg.Exe); err != nil {
		return nil, err
	}
	r := &Result{Started: time.Now(), Machine: observe.Describe(), Rounds: cfg.Rounds}
	x := &run{cfg: &cfg, r: r}
	err := x.rounds(ctx)
	err = errors.Join(context.Cause(ctx), err)
	r.Seconds = time.Since(r.Started).Seconds()
	r.settle()
	if err != nil && len(r.Points) == 0 {
		return r, err // nothing to report
	}
	err = errors.Join(err, r.document().Keep(cfg.Stdout, cfg.Out))
	if err == nil {
		missed := 0
		for _, v := range r.Verdicts() {
			if v.Missed {
				missed++
			}
		}
		if missed > 0 {
			err = fmt.Errorf("%w: %d of %d figures", ErrMissed, missed, len(Limits))
		}
	}
	return r, err
}

type run struct {
	cfg *Config
	r   *Result
}

// Ports of the targets' control connections on host 1's management link.
const (
	port          = "18515"
	multipathPort = "18516"
)

// segment is the memory at either end: more than a last-level cache's slice, and
// soon filled.
const segment = "256m"

func (x *run) rounds(ctx context.Context) error {
	for round := 1; round <= x.cfg.Rounds; round++ {
		for i := 0; i < len(sweeps); {
			n := 1
			for i+n < len(sweeps) && linksName(sweeps[i+n].links) == linksName(sweeps[i].links) {
				n++
			}
			if err := x.onLinks(ctx, round, sweeps[i:i+n]); err != nil {
				return err
			}
			i += n
		}
	}
	return nil
}

// onLinks runs sweeps on the same links, and the failover on even ones, in one lab.
func (x *run) onLinks(ctx context.Context, round int, group []sweep) (err error) {
	dir, err := os.MkdirTemp("", "kvferry-nics")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	links := group[0].links
	l, err := lab.Start(ctx, lab.Config{Rates: links, MPTCP: true, Timeout: time.Hour, Out: dir})
	if err != nil {
		return err
	}
	defer l.Close()
	for _, target := range []struct {
		port  string
		specs []string
	}{{port, (&sweep{links: links}).specs()}, {multipathPort, (&sweep{mptcp: true}).specs()}} {
		args := []string{x.cfg.Exe, "rail", "bench", "--server", "--listen", lab.ManagementAddress(1) + ":" + target.port, "--segment", segment}
		p, err := start(ctx, l, 1, proc.Cmd{Args: append(args, railFlags(target.specs)...), Announce: serving})
		if err != nil {
			return err
		}
		defer p.Stop()
	}
	for i := range group {
		if err := x.transfer(ctx, l, round, &group[i]); err != nil {
			return err
		}
	}
	if linksName(links) == linksName(Even) {
		return x.failover(ctx, l, round, filepath.Join(dir, "host2", "faults.jsonl"))
	}
	return nil
}

// serving begins the line of a target that listens.
const serving = "serving clients at"

func railFlags(specs []string) (flags []string) {
	for _, s := range specs {
		flags = append(flags, "--rail", s)
	}
	return flags
}

// transfer runs a sweep.
func (x *run) transfer(ctx context.Context, l *lab.Lab, round int, s *sweep) error {
	list := func(n int, text func(i int) string) string {
		var all []string
		for i := range n {
			all = append(all, text(i))
		}
		return strings.Join(all, ",")
	}
	out, err := os.MkdirTemp("", "kvferry-transfer")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	counts := s.counts
	at := lab.ManagementAddress(1) + ":" + port
	if s.mptcp {
		counts, at = []int{1}, lab.ManagementAddress(1)+":"+multipathPort
	}
	args := append([]string{
		x.cfg.Exe, "rail", "bench", at, "--format", "json", "--check", "--limit", "none", "--segment", segment, "--out", out,
		"--rails", list(len(counts), func(i int) string { return strconv.Itoa(counts[i]) }),
		"--select", list(len(s.selects), func(i int) string { return string(s.selects[i]) }),
		"--block", config.FormatSize(s.load.Block), "--batch", strconv.Itoa(s.load.Batch), "--depth", strconv.Itoa(s.load.Depth),
		"--duration", x.cfg.Duration.String(), "--warmup", "400ms",
	}, railFlags(s.specs())...)
	text, err := output(ctx, l, 2, args...)
	if err != nil {
		return err
	}
	var got rail.Result
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		return fmt.Errorf("kvferry rail bench printed no result: %w", err)
	}
	k := 0
	for _, count := range s.counts {
		for _, sel := range s.selects {
			if k == len(got.Points) {
				return fmt.Errorf("kvferry rail bench printed %d points, and there are more", k)
			}
			x.add(round, point(s.key(count, sel), s.ideal(count, sel), &got.Points[k]))
			k++
		}
	}
	return nil
}

func (x *run) add(round int, p Point) {
	x.r.Points = append(x.r.Points, p)
	x.keep()
	fmt.Fprintf(x.cfg.Progress, "round %d/%d %s: %.3f GB/s, %.1f %% of ideal\n", round, x.cfg.Rounds, p.Key, p.GBps, 100*p.GBps*1e9/p.Ideal)
}

// keep writes what there is so far; an error is one at the end too.
func (x *run) keep() {
	x.r.settle()
	_ = x.r.document().Write(x.cfg.Out)
}

// failover loads all links while the schedule happens to them.
func (x *run) failover(ctx context.Context, l *lab.Lab, round int, faults string) error {
	f := failover{exe: x.cfg.Exe, specs: (&sweep{links: Even}).specs(), faults: faults, schedule: schedule, end: scheduleEnd}
	if x.cfg.Out != "" {
		f.out = filepath.Join(x.cfg.Out, fmt.Sprintf("failover%d", round))
	}
	got, ended, err := f.run(ctx, l)
	if err != nil {
		return err
	}
	x.r.Failovers = append(x.r.Failovers, got)
	x.keep()
	if ended != nil {
		x.r.Notes = append(x.r.Notes, fmt.Sprintf("round %d: %v", round, ended))
	}
	fmt.Fprintf(x.cfg.Progress, "round %d/%d failover: %d faults, %d blocks checked, %d bad\n", round, x.cfg.Rounds, len(got.Recoveries), got.Checked, got.Bad)
	return ctx.Err()
}
