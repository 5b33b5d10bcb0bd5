package nics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	fair "kvferry/bench/stats"
	"kvferry/internal/config"
	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
	"kvferry/transport"
)

// An incastRun has initiators and one target, whose NIC they share, in the NIC lab: how evenly they
// share it, and how long something small waits meanwhile.
type incastRun struct {
	initiators       int   // besides the probe
	rate             int64 // bits a second of the target's NIC, in each direction
	rounds           int   // of each case, of which figures are medians
	duration, warmup time.Duration
	machine          observe.Machine
	points           []incastPoint
}

// switchQueue is the size in bytes of the queue of the switch port in front of the target, which drops the rest.
const switchQueue = 512 << 10

// An incastCase is one way in which many meet at one NIC, and the limits of its figures.
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

// An incastPoint is a case in one round.
type incastPoint struct {
	of      *incastCase
	round   int
	percent float64 // of the ideal payload rate, 1448/1514 of the NIC's
	*incastSample
	notice Notice
}

// incastFigures are the figures of a case, with their limits.
var incastFigures = []struct {
	name, unit  string
	digits      int
	least, most func(*incastCase) float64 // nil and 0: no limit
	of          func(*incastPoint) float64
}{
	{name: "rate", unit: ofIdeal, digits: 1, least: func(*incastCase) float64 { return 97 }, of: func(p *incastPoint) float64 { return p.percent }},
	// What the initiator got that got least, by what the one got that got most.
	{name: "least/most", digits: 2, least: func(c *incastCase) float64 { return c.share }, of: func(p *incastPoint) float64 { return p.MinMax }},
	// 1 if all got the same, and 1/n if one got all.
	{name: "Jain's index", digits: 3, of: func(p *incastPoint) float64 { return p.Jain }},
	{name: "probe p50", unit: inMS, digits: 1, of: func(p *incastPoint) float64 { return p.P50MS }},
	{name: "probe p99", unit: inMS, digits: 1, most: func(c *incastCase) float64 { return c.wait }, of: func(p *incastPoint) float64 { return p.P99MS }},
}

// BenchmarkIncast prints the figures of 16 initiators and fails if one misses its limit, or was
// disturbed. It takes two minutes, and root.
func BenchmarkIncast(b *testing.B) {
	if err := lab.Check(); err != nil {
		b.Fatalf("no lab here: %v", err)
	}
	for range b.N {
		r := incastRun{initiators: 16, rate: half, rounds: 3, duration: 6 * time.Second, warmup: 2 * time.Second, machine: observe.Describe()}
		if err := r.measureAll(b.Context()); err != nil {
			b.Fatal(err)
		}
		t, rows := r.table()
		fmt.Printf("%s\n\n%s", r.machine.String(), t.Text())
		if err := judged(rows); err != nil {
			b.Error(err)
		}
	}
}

// measureAll measures each case in each round. One that the machine disturbed is measured once more.
func (r *incastRun) measureAll(ctx context.Context) error {
	for round := 1; round <= r.rounds; round++ {
		for i := range incastCases {
			c := &incastCases[i]
			l := lab.Config{Rates: []int64{r.rate}, Addresses: r.initiators + 1, Timeout: time.Hour}
			if c.behind {
				l.SwitchQueue = switchQueue
			}
			if err := inLab(ctx, l, false, func(ctx context.Context, l *lab.Lab) (func(Notice), error) {
				s, err := r.measure(ctx, l, c)
				return func(n Notice) { r.add(c, round, s, n) }, err
			}); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

func (r *incastRun) add(c *incastCase, round int, s *incastSample, n Notice) {
	var sum int64
	for _, b := range s.Bytes {
		sum += b
	}
	r.points = append(r.points, incastPoint{of: c, round: round, percent: 100 * float64(sum) / s.Seconds / Ideal([]int64{r.rate}), incastSample: s, notice: n})
}

// measure runs a case: the target on host 1, the initiators and the probe on host 2.
func (r *incastRun) measure(ctx context.Context, l *lab.Lab, c *incastCase) (*incastSample, error) {
	load := incastLoad{At: lab.Address(1, 0), Op: c.op, From: lab.Addresses(2, 0, r.initiators+1), Warmup: r.warmup, Duration: r.duration}
	side := func(name string) proc.Cmd {
		exe, e := os.Executable()
		arg, err := json.Marshal(&load)
		if err = errors.Join(e, err); err != nil {
			panic(err)
		}
		return proc.Cmd{Args: []string{exe, string(arg)}, Env: append(os.Environ(), incastEnv+"="+name)}
	}
	cmd := side("target")
	cmd.Announce = "{"
	target, err := start(ctx, l, 1, cmd)
	if err != nil {
		return nil, err
	}
	defer target.Stop()
	if err := json.Unmarshal([]byte(target.Hello), &load.Target); err != nil {
		return nil, fmt.Errorf("the target printed no address: %w", err)
	}
	var out strings.Builder
	cmd = side("load")
	cmd.Out = &out
	s := &incastSample{}
	return s, errors.Join(proc.Run(ctx, on(l, 2, cmd)), json.Unmarshal([]byte(out.String()), s))
}

// table has a line for each case and figure. It returns the rows too.
func (r *incastRun) table() (document.Table, []Figure) {
	t := document.Table{
		Title: fmt.Sprintf("%d initiators and one target, whose NIC carries %g Mbit/s; behind a switch its port's queue holds %s; 4 KiB now and then is the probe;\nmedians of %d", r.initiators, float64(r.rate)/1e6, config.FormatSize(switchQueue), r.rounds),
		Left:  3, Head: []string{"case", "they meet", "figure", kvferry, "low..high", "must be", "CPUs idle %", ""},
	}
	var rows []Figure
	for i := range incastCases {
		c := &incastCases[i]
		for _, f := range incastFigures {
			row := over(Figure{Case: c.name, What: strings.TrimSpace(f.name + " " + f.unit), Unit: f.unit}, r.points, func(p *incastPoint) (int, *Notice, float64, bool) {
				return p.round, &p.notice, f.of(p), p.of == c
			})
			must := ""
			if f.least != nil {
				row.Least = f.least(c)
			}
			if f.most != nil {
				row.Most = f.most(c)
			}
			if row.Least+row.Most > 0 {
				must = row.must()
			}
			row.judge(must != "", row.Value >= row.Least && (row.Most == 0 || row.Value <= row.Most))
			rows = append(rows, row)
			t.Add(slices.Concat([]string{c.name, c.what, row.What}, row.measured(f.digits), []string{must}, row.ending())...)
		}
	}
	return t, rows
}

// measuredIncast is a result of three rounds in which 16 share a NIC evenly.
func measuredIncast() *incastRun {
	r := &incastRun{rounds: 3, initiators: 16, rate: half}
	for i := range incastCases {
		for round := 1; round <= 3; round++ {
			bytes := slices.Repeat([]int64{22<<20 + int64(round)<<20}, 16)
			r.add(&incastCases[i], round, &incastSample{Seconds: 6.5, Fairness: fair.Shares(bytes), Probes: 600, P50MS: 3, P99MS: 4}, Notice{IdlePct: 40})
		}
	}
	return r
}

// TestIncastLimits: a good result is within its limits; one that starves, is slow or has the probe wait
// is not, and one that the machine disturbed says nothing.
func TestIncastLimits(t *testing.T) {
	named := func(rows []Figure, verdict string) (all []string) {
		for _, row := range rows {
			if row.Verdict == verdict {
				all = append(all, row.Case+" "+row.What)
			}
		}
		return all
	}
	table, rows := measuredIncast().table()
	if err := judged(rows); err != nil || len(rows) != len(incastCases)*len(incastFigures) || len(named(rows, isOK)) != 3*len(incastCases)-2 {
		t.Fatalf("%v: %+v", err, rows)
	}
	if rate := rows[0]; rate.What != "rate % of ideal" || math.Abs(rate.Value-16*(24<<20)/6.5/Ideal([]int64{half})*100) > 1e-9 || rate.Kept != 3 {
		t.Errorf("%+v", rate)
	}
	for _, want := range []string{"16 initiators", "500 Mbit/s", "512k", "read-switch", "least/most", "at least 0.", "at most "} {
		if !strings.Contains(table.Text(), want) {
			t.Errorf("no %q in\n%s", want, table.Text())
		}
	}
	for want, change := range map[string]func(*incastPoint){
		"read-switch rate % of ideal": func(p *incastPoint) { p.percent = 50 },
		"read least/most":             func(p *incastPoint) { p.MinMax = 0.05 },
		"read probe p99 ms":           func(p *incastPoint) { p.P99MS = 1000 },
		"write-switch probe p99 ms":   func(p *incastPoint) { p.P99MS = 1000 },
		"write-switch least/most":     func(p *incastPoint) { p.MinMax = 0.05 },
	} {
		r := measuredIncast()
		for i := range r.points {
			if p := &r.points[i]; strings.HasPrefix(want, p.of.name+" ") && p.round > 1 {
				change(p)
			}
		}
		_, rows := r.table()
		if got := named(rows, isMissed); !slices.Equal(got, []string{want}) || !errors.Is(judged(rows), ErrMissed) {
			t.Errorf("missed %q, want %q: %v", got, want, judged(rows))
		}
		for i := range r.points {
			r.points[i].notice.Why = "only 1 % of the CPUs were idle"
		}
		_, rows = r.table()
		if got, err := named(rows, isDisturbed), judged(rows); len(got) != len(rows) || !errors.Is(err, ErrDisturbed) || errors.Is(err, ErrMissed) {
			t.Errorf("disturbed: %q: %v", got, err)
		}
	}
	_, rows = new(incastRun).table()
	if len(named(rows, isUnmeasured)) != len(rows) || !errors.Is(judged(rows), ErrMissed) {
		t.Errorf("%+v", rows)
	}
}

// TestIncastInLab: one round of all cases with three initiators runs to its end, and all have a share, but where the
// machine was too busy: there some do. Their figures are held to their limits by make bench-incast.
func TestIncastInLab(t *testing.T) {
	if err := lab.Check(); err != nil {
		t.Skipf("no lab here: %v", err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	r := incastRun{initiators: 3, rate: 100e6, rounds: 1, duration: 2 * time.Second, warmup: 100 * time.Millisecond}
	if err := r.measureAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(r.points) < len(incastCases) {
		t.Fatalf("%+v", r)
	}
	for _, p := range r.points {
		sum := int64(0)
		for _, n := range p.Bytes {
			sum += n
		}
		// What was under way when it began may count too, a MiB each, and what the NIC sends at once.
		most := float64(r.rate)/8*p.Seconds + 3.5e6
		// Who sends to many behind a switch sees no losses but its own: there is no limit for the share of one.
		starved := sum == 0 || p.MinMax == 0 && p.notice.Why == "" && p.of.name != "read-switch"
		if len(p.Bytes) != 3 || starved || float64(sum) > most || p.Probes == 0 || p.P50MS <= 0 || p.P99MS < p.P50MS {
			t.Errorf("%+v, %+v", p, p.incastSample)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
