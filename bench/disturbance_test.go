package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/clock"
)

// watched runs one cell into dir whose attempts were disturbed as given: late timers in
// ms on average.
func watched(t *testing.T, dir string, cfg Config, late ...float64) (*Results, string, string, error) {
	t.Helper()
	var stdout, progress bytes.Buffer
	cfg.Workloads, cfg.NumPrompts, cfg.Out, cfg.Stdout, cfg.Progress = []Workload{scaled}, 4, dir, &stdout, &progress
	cfg = cfg.withDefaults()
	x := &run{cfg: cfg, results: &Results{Config: cfg.record()}, bar: newProgress(cfg)}
	x.watch = func([]int) (func() (*Disturbance, error), error) {
		d := &Disturbance{LateMeanMS: late[0], LateTimersPct: 30, CPU: &CPUUse{CPUs: 2, OthersPct: 40, Daemons: true}}
		late = late[1:]
		d.judge()
		return func() (*Disturbance, error) { return d, nil }, nil
	}
	r, err := x.run(t.Context())
	return r, stdout.String(), progress.String(), err
}

// TestRetriesDisturbed: a disturbed cell is measured again, the least disturbed attempt
// is reported, and the records of all are kept.
func TestRetriesDisturbed(t *testing.T) {
	for _, c := range []struct {
		name     string
		retries  int
		late     []float64
		reported int
		marked   bool
	}{
		{"quiet", 1, []float64{0.2}, 0, false},
		{"once", 1, []float64{40, 0.1}, 1, false},
		{"both, the first less", 1, []float64{5, 6}, 0, true},
		{"both, the second less", 1, []float64{6, 5}, 1, true},
		{"no retries", 0, []float64{40}, 0, true},
		{"three, the second least", 2, []float64{9, 3, 4}, 1, true},
		{"the second is quiet, there is no third", 2, []float64{9, 0.5}, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeServer(t, &fakeServer{})
			dir := t.TempDir()
			r, stdout, progress, err := watched(t, dir, Config{
				Settings: settings(t, "nondisagg"), RetriesDisturbed: c.retries, Start: serving(map[string]*fakeServer{"nondisagg": f}, nil),
			}, c.late...)
			if err != nil || len(r.Cells) != 1 {
				t.Fatalf("%d cells, %v", len(r.Cells), err)
			}
			cell, n := &r.Cells[0], len(c.late)
			if cell.Attempt != c.reported || cell.disturbed() != c.marked || cell.Disturbance.LateMeanMS != c.late[c.reported] {
				t.Errorf("attempt %d of %d is reported, with %+v", cell.Attempt, n, cell.Disturbance)
			}
			if n > 1 && len(cell.Attempts) != n || n == 1 && cell.Attempts != nil || strings.Count(strings.Join(cell.Notes, "\n"), "is not reported, mean TTFT") != n-1 {
				t.Errorf("attempts %+v, notes %q", cell.Attempts, cell.Notes)
			}
			records := readAll(t, dir)
			byAttempt := map[int]int{}
			for _, rec := range records {
				byAttempt[rec.Attempt]++
			}
			for i := range n {
				if byAttempt[i] != 4 {
					t.Errorf("records by attempt: %v", byAttempt)
				}
			}
			for _, rec := range cell.Records {
				if rec.Attempt != c.reported {
					t.Errorf("the cell has a record of attempt %d", rec.Attempt)
				}
			}
			// Another attempt on the same server must not find its prompts cached.
			firsts := map[string]bool{}
			for _, req := range f.requests() {
				firsts[fmt.Sprint(req.Prompt[:16])] = true
			}
			if len(firsts) != 5*n {
				t.Errorf("%d different first blocks of %d requests", len(firsts), 5*n)
			}
			marks := strings.Contains(stdout, "nondisagg ~") && strings.Contains(stdout, "was disturbed: ") && strings.Contains(stdout, " ms late on average (limit 0.5)")
			if marks != c.marked || strings.Contains(stdout, "~") != c.marked {
				t.Errorf("marked in the table: %t, want %t:\n%s", marks, c.marked, stdout)
			}
			if strings.Count(progress, "\n") != n || strings.Count(progress, "cell 1/1") != n || strings.Count(progress, "measured again") != n-1 {
				t.Errorf("progress:\n%s", progress)
			}
			row := readSummary(t, dir).Rows[0]
			if row.Disturbance == nil || (len(row.Disturbance.Why) > 0) != c.marked || len(row.Attempts) != len(cell.Attempts) {
				t.Errorf("summary.json: %+v", row.Disturbance)
			}
			var md, html bytes.Buffer
			if err := errors.Join(WriteMarkdown(&md, r), WriteHTML(&html, r)); err != nil {
				t.Fatal(err)
			}
			for _, page := range []string{md.String(), html.String()} {
				if !strings.Contains(page, "how quiet the machine was") || strings.Contains(page, "nondisagg ~") != c.marked {
					t.Errorf("report:\n%.300s", page)
				}
			}
		})
	}
}

// TestRetriesHideNothing: an attempt with faults is the one that is reported, and one
// that was interrupted is not, where another came to its end.
func TestRetriesHideNothing(t *testing.T) {
	f := &fakeServer{}
	f.behave = func(w http.ResponseWriter, _ *http.Request, req *completionRequest) bool {
		if !strings.HasSuffix(req.ID, "-3") {
			return false
		}
		http.Error(w, "pool is gone", http.StatusInternalServerError)
		return true
	}
	newFakeServer(t, f)
	r, _, _, err := watched(t, t.TempDir(), Config{Settings: settings(t, "nondisagg"), RetriesDisturbed: 1, Start: serving(map[string]*fakeServer{"nondisagg": f}, nil)}, 40)
	if !errors.Is(err, ErrFaults) || r.Cells[0].Attempts != nil || r.Cells[0].mark() != "nondisagg *~" {
		t.Errorf("%v, mark %q", err, r.Cells[0].mark())
	}

	g := newFakeServer(t, &fakeServer{})
	starts := 0
	r, _, _, err = watched(t, t.TempDir(), Config{Settings: settings(t, "nondisagg"), RetriesDisturbed: 1, Start: func(context.Context, Setting) (Cluster, error) {
		if starts++; starts == 2 {
			return nil, errors.New("no memory")
		}
		return fakeCluster{url: g.URL}, nil
	}}, 40)
	if !errors.Is(err, ErrFaults) || len(r.Cells[0].Attempts) != 2 || r.Cells[0].Attempt != 1 {
		t.Errorf("a second attempt that did not start: %v, %+v", err, r.Cells[0].Row)
	}

	first, second := &Cell{}, &Cell{}
	first.Disturbance, first.Metrics = &Disturbance{LateMeanMS: 30}, &Metrics{}
	second.Interrupted = true
	if c := reported([]*Cell{first, second}); c != first || !strings.Contains(strings.Join(c.Notes, ""), "did not come to its end") {
		t.Errorf("interrupted in the second attempt: %+v", c.Row)
	}
}

// lateClock is a clock whose every third timer fires 8 ms late.
type lateClock struct {
	now   time.Duration
	sets  int
	limit time.Duration // it stops here
	stop  context.CancelFunc
}

func (c *lateClock) Now() time.Duration { return c.now }

func (c *lateClock) NewTimer() (clock.Timer, error) {
	return &lateTimerFake{c, make(chan struct{}, 1)}, nil
}

type lateTimerFake struct {
	c    *lateClock
	fire chan struct{}
}

func (t *lateTimerFake) C() <-chan struct{} { return t.fire }
func (t *lateTimerFake) Stop()              {}
func (t *lateTimerFake) Close() error       { return nil }

func (t *lateTimerFake) Set(at time.Duration) {
	if at > t.c.limit {
		t.c.stop()
		return
	}
	t.c.now = at
	if t.c.sets++; t.c.sets%3 == 0 {
		t.c.now += 8 * time.Millisecond
	}
	t.fire <- struct{}{}
}

// TestProbe: the schedule is absolute, and lateness does not shift it.
func TestProbe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	c := &lateClock{limit: time.Second, stop: stop}
	timer, _ := c.NewTimer()
	w := &watch{clk: c}
	w.probe(ctx, timer)
	if len(w.late) != 100 {
		t.Errorf("%d wake-ups in a second, want 100", len(w.late))
	}
	d := &Disturbance{}
	d.lateness(w.late)
	d.judge()
	if d.LateTimersPct != 33 || math.Abs(d.LateMeanMS-2.64) > 1e-9 || d.LateMaxMS != 8 || d.LateP90MS != 8 || len(d.Why) != 1 {
		t.Errorf("%+v", d)
	}
}

// TestLongPause: one pause is as many late wake-ups as it is long.
func TestLongPause(t *testing.T) {
	late := make([]float64, 990)
	for ms := 100.0; ms > 0; ms -= 10 {
		late = append(late, ms)
	}
	d := &Disturbance{}
	d.lateness(late)
	if d.LateTimersPct != 1 || d.LateMeanMS != 0.55 || d.LateMaxMS != 100 || d.LateP90MS != 0 {
		t.Errorf("%+v", d)
	}
	d = &Disturbance{}
	if d.lateness(nil); d.LateTimersPct != 0 {
		t.Errorf("nothing: %+v", d)
	}
}

func TestCPUUse(t *testing.T) {
	const took = 10 * time.Second
	before := usage{cpus: 2, idle: time.Second, own: time.Second, steal: time.Second, waited: time.Second, waitedKnown: true}
	after := usage{cpus: 2, idle: 11 * time.Second, own: 5 * time.Second, steal: 2 * time.Second, waited: 2 * time.Second, waitedKnown: true}
	c := cpuUse(before, after, took, true)
	if c.CPUs != 2 || c.OwnPct != 20 || c.StealPct != 5 || c.OthersPct != 25 || c.RunDelayPct == nil || *c.RunDelayPct != 10 || !c.Daemons {
		t.Errorf("%+v, run delay %v", c, c.RunDelayPct)
	}
	d := &Disturbance{CPU: c}
	d.judge()
	if len(d.Why) != 1 || !strings.Contains(d.Why[0], "hypervisor took 5.0 %") || d.score() != 2.5 {
		t.Errorf("%q, score %v", d.Why, d.score())
	}
	// Sums of ticks may miss the whole by some.
	after.waitedKnown = false
	after.idle = 30 * time.Second
	if c := cpuUse(before, after, took, false); c.OthersPct != 0 || c.RunDelayPct != nil {
		t.Errorf("%+v", c)
	}
	// At the thresholds a row is not marked, beyond each it is. The others' share counts
	// only where the daemons are not among them.
	for why, d := range map[string]*Disturbance{
		"": {CPU: &CPUUse{StealPct: 2, OthersPct: 50, Daemons: true}, LateMeanMS: 0.5},
		"others used, but not known to be others": {CPU: &CPUUse{StealPct: 2, OthersPct: 99}, LateMeanMS: 0.5},
		"timers came 0.6 ms late":                 {LateMeanMS: 0.6},
		"hypervisor took 3.0 %":                   {CPU: &CPUUse{StealPct: 3}},
		"other programs used 51 %":                {CPU: &CPUUse{OthersPct: 51, Daemons: true}},
	} {
		d.judge()
		if marked := why != "" && !strings.Contains(why, "not known"); marked != (len(d.Why) == 1) || marked != (d.score() > 1) || marked && !strings.Contains(d.String(), why) {
			t.Errorf("%q: %q, score %v", why, d.Why, d.score())
		}
	}
}

// TestDisturbanceUnknown: a machine that does not tell who had its CPUs is watched by
// its timers, and the row says what is missing.
func TestDisturbanceUnknown(t *testing.T) {
	f := newFakeServer(t, &fakeServer{})
	cfg := Config{Workloads: []Workload{scaled}, NumPrompts: 3, Settings: settings(t, "nondisagg"), Start: serving(map[string]*fakeServer{"nondisagg": f}, nil), Out: t.TempDir()}.withDefaults()
	x := &run{cfg: cfg, results: &Results{Config: cfg.record()}, bar: newProgress(cfg)}
	x.watch = func([]int) (func() (*Disturbance, error), error) {
		return func() (*Disturbance, error) {
			return &Disturbance{Why: []string{}}, errors.New("only Linux has it")
		}, nil
	}
	r, err := x.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Cells[0].Notes, "\n")
	if !strings.Contains(notes, "who used the CPUs is not known: only Linux has it") || !strings.Contains(notes, "only this machine was watched") {
		t.Errorf("notes %q", notes)
	}
	if i := slices.IndexFunc(readSummary(t, cfg.Out).Rows, func(r Row) bool { return r.Disturbance == nil || r.Disturbance.CPU != nil }); i >= 0 {
		t.Error("summary.json claims to know")
	}
}
