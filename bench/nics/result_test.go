package nics

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/bench/document/documenttest"
	"kvferry/bench/observe"
	"kvferry/bench/rail"
	"kvferry/transport"
)

// measuredOn is the beginning of a result of three rounds.
func measuredOn(seconds float64) outcome {
	return outcome{Rounds: 3, Seconds: seconds, Machine: observe.Machine{CPU: "AMD EPYC", Threads: 2, MemoryBytes: 24 << 30, OS: "linux/amd64", Kernel: "6.18", Go: "go1.26"}}
}

// measured is a result of three rounds in which every rate is a share of its ideal.
func measured(share func(s *sweep, count int, sel transport.Selection) float64) *Result {
	r := &Result{outcome: measuredOn(120)}
	ms := func(n int) *time.Duration { d := time.Duration(n) * time.Millisecond; return &d }
	for round := range 3 {
		for i := range sweeps {
			s := &sweeps[i]
			for _, count := range s.counts {
				for _, sel := range s.selects {
					ideal := s.ideal(count, sel)
					p := rail.Point{RailsS: 2, CPU: rail.CPU{PerGB: 0.7}}
					for range s.specs()[:min(count, len(s.specs()))] {
						n := int64(2 * ideal * (share(s, count, sel) + 0.001*float64(round-1)) / float64(min(count, len(s.specs()))))
						p.Rails = append(p.Rails, rail.RailUse{Bytes: n})
					}
					r.Points = append(r.Points, Point{s.key(count, sel), measuredRate(ideal, &p)})
				}
			}
		}
		f := &rail.FailoverResult{Bytes: 1, Counted: 1, Checked: 100}
		for _, h := range schedule {
			f.Recoveries = append(f.Recoveries, rail.Recovery{Detect: ms(100 * round), Recover: ms(10 * round), Resent: 5e6, Worst: Ideal(h.links) * 0.93, After: Ideal(h.links) * 0.99})
		}
		f.Recoveries[slowStep].Detect = nil
		r.Failovers = append(r.Failovers, f)
	}
	r.settle()
	return r
}

func good(*sweep, int, transport.Selection) float64 { return 0.995 }

// rowOf is the row of a key.
func (r *Result) rowOf(k Key) *Row {
	return &r.Rows[slices.IndexFunc(r.Rows, func(row Row) bool { return row.Key == k })]
}

func missed(r *Result) (names []string) {
	r.judge()
	for _, f := range r.Limits {
		if f.Verdict != isOK {
			names = append(names, f.Case)
		}
	}
	return names
}

// TestLimits: a good result is within all limits, and each fault of a result is
// found by the limit that is there for it.
func TestLimits(t *testing.T) {
	if names := missed(measured(good)); len(names) > 0 {
		t.Errorf("missed %q", names)
	}
	if n := len(missed(&Result{})); n != len(limits) {
		t.Errorf("nothing was measured, and %d of %d limits are missed", n, len(limits))
	}
	slow := measured(func(s *sweep, count int, _ transport.Selection) float64 {
		if s.load == large && count == 4 {
			return 0.965
		}
		return 0.995
	})
	if got := strings.Join(missed(slow), "; "); got != "4 x 2 Gbit; 4/2/2/1 Gbit, affinity; 4 NICs over 1" {
		t.Errorf("missed %s", got)
	}
	for name, change := range map[string]func(*Result){
		"CPU a GB, 4 NICs over 1":            func(r *Result) { r.rowOf(four).CPUPerGB *= 1.2 },
		"64 KiB blocks over 1 MiB, 4 NICs":   func(r *Result) { r.rowOf(four6).GBps *= 0.9 },
		"cut: the rest at full rate":         func(r *Result) { r.Steps[cutStep].RecoverMS = 201 },
		"restored: carries its share":        func(r *Result) { r.Steps[restoreStep].RecoverMS = never },
		"a tenth of the rate: share follows": func(r *Result) { r.Steps[slowStep].RecoverMS = math.NaN() },
		"black hole: found":                  func(r *Result) { r.Steps[holeStep].DetectMS = 501 },
		"lost, wrong or twice":               func(r *Result) { r.Wrong = 1 },
	} {
		r := measured(good)
		change(r)
		if got := missed(r); len(got) != 1 || got[0] != name || !errors.Is(judged(r.Limits), ErrMissed) {
			t.Errorf("missed %q, want %q", got, name)
		}
	}
}

func TestSettle(t *testing.T) {
	r := measured(good)
	if len(r.Rows) != 11 || len(r.Steps) != len(schedule) || r.Wrong != 0 {
		t.Fatalf("%d rows, %d steps", len(r.Rows), len(r.Steps))
	}
	row := r.rowOf(four)
	if math.Abs(row.Percent-99.5) > 0.01 || row.Low >= row.GBps || row.High <= row.GBps || len(row.Shares) != 4 || math.Abs(row.Shares[0]-0.25) > 1e-6 {
		t.Errorf("%+v", row)
	}
	if s := r.Steps[holeStep]; s.DetectMS != 100 || s.RecoverMS != 10 || math.Abs(s.Percent-99) > 0.01 || r.Steps[slowStep].DetectMS != never {
		t.Errorf("%+v", s)
	}
	// A run that was not sound counts, whatever it lost.
	r.Failovers[0].Errors, r.Failovers[1].Bad = 1, 5
	if r.settle(); r.Wrong != 6 {
		t.Errorf("%d wrong", r.Wrong)
	}
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1, 3}, 3}, {[]float64{never, 1}, 1}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v", c.values, got)
		}
	}
}

// TestSchedule: each step has the time that its limit gives it, and the half second
// over which a rate must hold.
func TestSchedule(t *testing.T) {
	needs := map[int]time.Duration{cutStep: 200 * time.Millisecond, restoreStep: 2 * time.Second, slowStep: time.Second, holeStep: 500 * time.Millisecond}
	for i, h := range schedule {
		next := scheduleEnd
		if i+1 < len(schedule) {
			next = schedule[i+1].at
		}
		if next-h.at < needs[i]+600*time.Millisecond {
			t.Errorf("%s has %v", h.what, next-h.at)
		}
	}
	if Ideal([]int64{2e9}) != 2e9/8*1448/1514.0 || linksName(Even) != "4 x 2" || linksName(Uneven) != "4/2/2/1" {
		t.Error("ideal and names")
	}
}

func TestReportGolden(t *testing.T) {
	r := measured(func(_ *sweep, _ int, sel transport.Selection) float64 {
		if sel == transport.Static {
			return 0.44
		}
		return 0.995
	})
	for _, f := range r.Failovers {
		f.Recoveries[wholeStep].Recover = nil
	}
	r.Notes = []string{"round 2: not sound: 1 batches failed"}
	var b bytes.Buffer
	if err := r.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	documenttest.Golden(t, "report.golden", b.Bytes())
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "efficiency in %: 4 x 2 Gbit, 1m x 8: 1 affinity 99.5, 2 affinity") {
		t.Errorf("the last line is %q", last)
	}
	dir := t.TempDir()
	if err := r.document().Write(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "nics.json")); err != nil {
		t.Error(err)
	}
}

func TestConfigFaults(t *testing.T) {
	for want, cfg := range map[string]Config{
		"Rounds: -1: use":          {Rounds: -1},
		"Duration: 1ms: use 100ms": {Duration: time.Millisecond},
	} {
		if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
