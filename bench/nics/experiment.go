package nics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	lab "kvferry/lab/nics"
	"kvferry/transport"
)

// Run runs the experiments in turns, prints their tables and holds them to their
// limits. When ctx is done it does so with what it has.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o, err := cfg.begin()
	if err != nil {
		return nil, err
	}
	r := &Result{outcome: o}
	for round := 1; round <= cfg.Rounds && err == nil; round++ {
		if err = r.onLinks(ctx, &cfg, round, Even); err == nil {
			err = r.onLinks(ctx, &cfg, round, Uneven)
		}
	}
	return r, cfg.end(ctx, err, &r.outcome, len(r.Points) > 0, r.document, func() error { return judged(r.Limits) })
}

// onLinks runs the sweeps on links, and the failover on even ones, in one lab.
func (r *Result) onLinks(ctx context.Context, cfg *Config, round int, links []int64) error {
	l, err := lab.Start(ctx, lab.Config{Rates: links, MPTCP: true, Timeout: time.Hour})
	if err != nil {
		return err
	}
	defer l.Close()
	for port, s := range map[string]sweep{port: {links: links}, multipathPort: {mptcp: true}} {
		p, err := cfg.serve(ctx, l, port, s.specs())
		if err != nil {
			return err
		}
		defer p.Stop()
	}
	for i := range sweeps {
		if s := &sweeps[i]; slices.Equal(s.links, links) {
			if err := r.transfer(ctx, cfg, l, round, fmt.Sprintf("transfer%d-%d", round, i+1), s); err != nil {
				return err
			}
		}
	}
	if !slices.Equal(links, Even) {
		return nil
	}
	got, failed, err := cfg.failover(ctx, l, fmt.Sprintf("failover%d", round), (&sweep{links: Even}).specs(), schedule, scheduleEnd)
	if err != nil {
		return err
	}
	r.Failovers = append(r.Failovers, got)
	if failed != nil {
		r.Notes = append(r.Notes, fmt.Sprintf("round %d: %v", round, failed))
	}
	_ = r.document().Write(cfg.Out) // an error is one at the end too
	fmt.Fprintf(cfg.Progress, "round %d/%d failover: %d faults, %d blocks checked, %d bad\n", round, cfg.Rounds, len(got.Recoveries), got.Checked, got.Bad)
	return ctx.Err()
}

// transfer runs a sweep.
func (r *Result) transfer(ctx context.Context, cfg *Config, l *lab.Lab, round int, name string, s *sweep) error {
	var counts, selects []string
	for _, n := range s.counts {
		counts = append(counts, strconv.Itoa(n))
	}
	for _, sel := range s.selects {
		selects = append(selects, string(sel))
	}
	at := port
	if s.mptcp {
		counts, at = []string{"1"}, multipathPort
	}
	points, err := cfg.bench(
		ctx, l, at, name, len(s.counts)*len(s.selects), s.specs(), "--rails", strings.Join(counts, ","), "--select", strings.Join(selects, ","),
		"--block", config.FormatSize(s.load.Block), "--batch", strconv.Itoa(s.load.Batch), "--depth", strconv.Itoa(s.load.Depth),
		"--duration", cfg.Duration.String(), "--warmup", "400ms",
	)
	if err != nil {
		return err
	}
	for i := range points {
		count, sel := s.counts[i/len(s.selects)], s.selects[i%len(s.selects)]
		p := Point{s.key(count, sel), measuredRate(s.ideal(count, sel), &points[i])}
		r.Points = append(r.Points, p)
		fmt.Fprintf(cfg.Progress, "round %d/%d %s: %.3f GB/s, %.1f %% of ideal\n", round, cfg.Rounds, p.Key, p.GBps, p.percent())
	}
	_ = r.document().Write(cfg.Out) // an error is one at the end too
	return nil
}

// A load is blocks in batches; depth batches are under way.
type load struct {
	Block int64
	Batch int
	Depth int
}

var (
	large = load{1 << 20, 8, 4}
	small = load{64 << 10, 64, 4} // what a layer of a prompt's KV is cut into
)

func (l load) String() string { return fmt.Sprintf("%s x %d", config.FormatSize(l.Block), l.Batch) }

// A sweep is one run of kvferry rail bench: a row for each count of NICs and selection.
type sweep struct {
	links   []int64 // bits a second
	load    load
	counts  []int // of links used, from the first
	selects []transport.Selection
	mptcp   bool // one connection over all links instead; counts and selects are one
}

var gbit = int64(1e9)

// Links of the experiments.
var (
	Even   = []int64{2 * gbit, 2 * gbit, 2 * gbit, 2 * gbit}
	Uneven = []int64{4 * gbit, 2 * gbit, 2 * gbit, 1 * gbit}
)

// sweeps are all runs of kvferry rail bench of one round.
var sweeps = []sweep{
	{links: Even, load: large, counts: []int{1, 2, 4}, selects: []transport.Selection{transport.Affinity}},
	{links: Even, load: small, counts: []int{1, 4}, selects: []transport.Selection{transport.Affinity}},
	{links: Even, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity}, mptcp: true},
	{links: Uneven, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity, transport.Static, transport.RoundRobin, transport.Single}},
	{links: Uneven, load: large, counts: []int{4}, selects: []transport.Selection{transport.Affinity}, mptcp: true},
}

// A Key names a row: the same experiment of every round.
type Key struct {
	Links  string `json:"links"` // "4 x 2", "4/2/2/1" Gbit/s
	NICs   int    `json:"nics"`  // used
	Select string `json:"select"`
	Load   string `json:"load"`
}

func (k Key) String() string {
	return fmt.Sprintf("%s Gbit, %d NICs, %s, %s", k.Links, k.NICs, k.Select, k.Load)
}

// multipath is the selection that is the kernel's.
const multipath = "MPTCP"

func (s *sweep) key(count int, sel transport.Selection) Key {
	k := Key{Links: linksName(s.links), NICs: count, Select: string(sel), Load: s.load.String()}
	if s.mptcp {
		k.Select = multipath
	}
	return k
}

// linksName is "4 x 2" or "4/2/2/1".
func linksName(links []int64) string {
	var names []string
	for _, r := range links {
		names = append(names, strconv.FormatFloat(float64(r)/1e9, 'g', 3, 64))
	}
	if len(slices.Compact(slices.Clone(names))) == 1 {
		return fmt.Sprintf("%d x %s", len(names), names[0])
	}
	return strings.Join(names, "/")
}

// Ideal returns the payload rate of links of these rates, in bytes a second.
func Ideal(links []int64) (sum float64) {
	for _, r := range links {
		sum += float64(r) / 8 * rail.Payload
	}
	return sum
}

// ideal returns the ideal rate of a row. A single link is the first.
func (s *sweep) ideal(count int, sel transport.Selection) float64 {
	if sel == transport.Single {
		count = 1
	}
	return Ideal(s.links[:count])
}

// specs are the rails of a sweep.
func (s *sweep) specs() (all []string) {
	if s.mptcp {
		return []string{"tcp/eth0?mptcp=1"}
	}
	for i := range s.links {
		all = append(all, fmt.Sprintf("tcp/eth%d", i))
	}
	return all
}
