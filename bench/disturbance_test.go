package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/client/clienttest"
	"kvferry/bench/observe"
	"kvferry/load"
)

// watched runs one cell into dir whose attempts were disturbed as given: late timers in
// ms on average.
func watched(t *testing.T, dir string, cfg Config, late ...float64) (*Results, string, string, error) {
	t.Helper()
	var stdout, progress bytes.Buffer
	cfg.Workloads, cfg.NumPrompts, cfg.Out, cfg.Stdout, cfg.Progress = []load.Workload{scaled}, 4, dir, &stdout, &progress
	cfg = cfg.withDefaults()
	x := &run{cfg: cfg, results: &Results{Config: cfg.record()}, bar: newProgress(cfg)}
	x.runner.Watch = func([]int) (func() (*observe.Disturbance, error), error) {
		d := &observe.Disturbance{LateMeanMS: late[0], LateTimersPct: 30, CPU: &observe.CPUUse{CPUs: 2, OthersPct: 40, Daemons: true}}
		late = late[1:]
		d.Judge()
		return func() (*observe.Disturbance, error) { return d, nil }, nil
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
			f := clienttest.NewServer(t, &clienttest.Server{})
			dir := t.TempDir()
			r, stdout, progress, err := watched(t, dir, Config{
				Settings: settings(t, "nondisagg"), RetriesDisturbed: c.retries, Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil),
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
			for _, req := range f.Requests() {
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
			if err := errors.Join(r.document().WriteMarkdown(&md), r.document().WriteHTML(&html)); err != nil {
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
	f := &clienttest.Server{}
	f.Behave = func(w http.ResponseWriter, _ *http.Request, req *clienttest.Completion) bool {
		if !strings.HasSuffix(req.ID, "-3") {
			return false
		}
		http.Error(w, "pool is gone", http.StatusInternalServerError)
		return true
	}
	clienttest.NewServer(t, f)
	r, _, _, err := watched(t, t.TempDir(), Config{Settings: settings(t, "nondisagg"), RetriesDisturbed: 1, Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil)}, 40)
	if !errors.Is(err, ErrFaults) || r.Cells[0].Attempts != nil || r.Cells[0].mark() != "nondisagg *~" {
		t.Errorf("%v, mark %q", err, r.Cells[0].mark())
	}

	g := clienttest.NewServer(t, &clienttest.Server{})
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
	first.Disturbance, first.Metrics = &observe.Disturbance{LateMeanMS: 30}, &client.Metrics{}
	second.Interrupted = true
	if c := reported([]*Cell{first, second}); c != first || !strings.Contains(strings.Join(c.Notes, ""), "did not come to its end") {
		t.Errorf("interrupted in the second attempt: %+v", c.Row)
	}
}

// TestDisturbanceUnknown: a machine that does not tell who had its CPUs is watched by
// its timers, and the row says what is missing.
func TestDisturbanceUnknown(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	cfg := Config{Workloads: []load.Workload{scaled}, NumPrompts: 3, Settings: settings(t, "nondisagg"), Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil), Out: t.TempDir()}.withDefaults()
	x := &run{cfg: cfg, results: &Results{Config: cfg.record()}, bar: newProgress(cfg)}
	x.runner.Watch = func([]int) (func() (*observe.Disturbance, error), error) {
		return func() (*observe.Disturbance, error) {
			return &observe.Disturbance{Why: []string{}}, errors.New("only Linux has it")
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

// TestRunWatches: a cell that is measured says how this machine was meanwhile.
func TestRunWatches(t *testing.T) {
	f := clienttest.NewServer(t, &clienttest.Server{})
	r, err := Run(t.Context(), Config{
		Workloads: []load.Workload{scaled}, Settings: settings(t, "nondisagg"), NumPrompts: 40, Out: t.TempDir(),
		Start: serving(map[string]*clienttest.Server{"nondisagg": f}, nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	d := r.Cells[0].Disturbance
	if d == nil || d.LateMaxMS < d.LateP99MS || d.LateMaxMS <= 0 {
		t.Errorf("%+v", d)
	}
}
