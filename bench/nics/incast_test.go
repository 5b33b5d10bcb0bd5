package nics

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"kvferry/bench/incast"
	"kvferry/bench/observe"
	fair "kvferry/bench/stats"
)

// measuredIncast is a result of three rounds in which 16 share a NIC evenly.
func measuredIncast() *IncastResult {
	r := &IncastResult{Rounds: 3, Initiators: 16, Rate: half, SwitchQueue: 512 << 10, Machine: observe.Machine{CPU: "AMD EPYC"}}
	for i := range incastCases {
		c := &incastCases[i]
		r.Cases = append(r.Cases, c.name)
		for round := 1; round <= 3; round++ {
			r.Points = append(r.Points, newIncastPoint(c, round, Ideal([]int64{half}), evenly(16, 22<<20+int64(round)<<20), Notice{IdlePct: 40}))
		}
	}
	r.settle()
	return r
}

// evenly is a sample of 6.5 s in which each of n got so many bytes.
func evenly(n int, bytes int64) *incast.Sample {
	return &incast.Sample{Seconds: 6.5, Fairness: fair.Shares(slices.Repeat([]int64{bytes}, n)), Probes: 600, P50MS: 3, P99MS: 4}
}

func (r *IncastResult) named(verdict string) (all []string) {
	for i := range r.Rows {
		if r.Rows[i].Verdict == verdict {
			all = append(all, r.Rows[i].Case+" "+r.Rows[i].Figure)
		}
	}
	return all
}

// TestIncastLimits: a good result is within its limits; one that starves, is slow or has the probe wait
// is not, and one that the machine disturbed says nothing.
func TestIncastLimits(t *testing.T) {
	good := measuredIncast()
	if err := good.missed(); err != nil || len(good.Rows) != len(incastCases)*len(incastFigures) || len(good.named(isOK)) != 3*len(incastCases)-2 {
		t.Fatalf("%v: %+v", err, good.Rows)
	}
	if rate := good.Rows[0]; rate.Figure != "rate" || math.Abs(rate.Value-16*(24<<20)/6.5/Ideal([]int64{half})*100) > 1e-9 || rate.Kept != 3 {
		t.Errorf("%+v", rate)
	}
	for want, change := range map[string]func(*IncastPoint){
		"read-switch rate":        func(p *IncastPoint) { p.Percent = 50 },
		"read least/most":         func(p *IncastPoint) { p.MinMax = 0.05 },
		"read probe p99":          func(p *IncastPoint) { p.P99MS = 1000 },
		"write-switch probe p99":  func(p *IncastPoint) { p.P99MS = 1000 },
		"write-switch least/most": func(p *IncastPoint) { p.MinMax = 0.05 },
	} {
		r := measuredIncast()
		for i := range r.Points {
			if p := &r.Points[i]; strings.HasPrefix(want, p.Case+" ") && p.Round > 1 {
				change(p)
			}
		}
		r.settle()
		if got := r.named(isMissed); !slices.Equal(got, []string{want}) || !errors.Is(r.missed(), ErrMissed) {
			t.Errorf("missed %q, want %q: %v", got, want, r.missed())
		}
		for i := range r.Points {
			r.Points[i].Notice.Why = "only 1 % of the CPUs were idle"
		}
		r.settle()
		if got := r.named(isDisturbed); len(got) != len(r.Rows) || !errors.Is(r.missed(), ErrDisturbed) || errors.Is(r.missed(), ErrMissed) {
			t.Errorf("disturbed: %q: %v", got, r.missed())
		}
	}
	empty := &IncastResult{Cases: []string{"read"}}
	if empty.settle(); len(empty.named(isUnmeasured)) != len(incastFigures) || !errors.Is(empty.missed(), ErrMissed) {
		t.Errorf("%+v", empty.Rows)
	}
	var b strings.Builder
	if err := good.document().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"16 initiators", "500 Mbit/s", "512k", "read-switch", "least/most", "at least 0.", "at most "} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
