package stats

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
	"time"
)

// TestSummary: the figures are numpy's, in milliseconds, of a list and of a histogram; they are rounded where
// they are written; and of nothing they are 0.
func TestSummary(t *testing.T) {
	// numpy.mean, std, median and percentile([1, 2, 4, 8], p).
	want := Summary{Values: 4, Mean: 3750, Std: 2680.9513236909, Median: 3000, P90: 6800, P95: 7400, P99: 7880, Max: 8000}
	got := NewSample([]float64{8, 1, 4, 2}).Summary()
	var h Histogram
	for _, d := range []time.Duration{8, 1, 4, 2} {
		h.Add(d * time.Second)
	}
	for _, f := range Figures {
		if w := f.Of(want); math.Abs(f.Of(got)-w) > 1e-9*w || math.Abs(f.Of(h.Summary())-w) > 0.0005*w {
			t.Errorf("%s %v, of a histogram %v, want %v", f.Name, f.Of(got), f.Of(h.Summary()), w)
		}
	}
	if got.Values != 4 || h.Summary().Values != 4 {
		t.Errorf("%d and %d values", got.Values, h.Summary().Values)
	}
	text, err := json.Marshal(Summary{Values: 1, Mean: 1.23456, Std: 0.00004})
	if mean, median, p99 := (Summary{Mean: 1.23456, Median: 2.00001, P99: 3}).Brief(); err != nil || string(text) != `{"values":1,"mean":1.2346,"std":0,"median":0,"p90":0,"p95":0,"p99":0,"max":0}` || mean != 1.2346 || median != 2 || p99 != 3 {
		t.Errorf("%s, %v; %v %v %v", text, err, mean, median, p99)
	}
	if none := NewSample(nil).Summary(); none != (Summary{}) || (&Histogram{}).Summary() != none {
		t.Errorf("of nothing %+v and %+v", none, (&Histogram{}).Summary())
	}
}

// TestSumIsPairwise: what a sum in order loses of many values is kept.
func TestSumIsPairwise(t *testing.T) {
	const n = 1 << 20
	if got := Sample(slices.Repeat([]float64{0.1}, n)).Sum(); math.Abs(got-0.1*n) > 1e-9 {
		t.Errorf("off by %g", got-0.1*n)
	}
}

func TestTPOT(t *testing.T) {
	if v, ok := TPOT(1, 4, 4); v != 1 || !ok {
		t.Errorf("%v %t", v, ok)
	}
	if v, ok := TPOT(1, 1, 1); v != 0 || ok {
		t.Errorf("of one token %v %t", v, ok)
	}
}

// TestSLO: a request is good if it keeps all bounds to the last digit; one without bounds is.
func TestSLO(t *testing.T) {
	slo, err := ParseSLO([]string{"ttft:200", "tpot:30.5"})
	if err != nil || slo.Limit("tpot") != 30.5 || slo.Limit("e2el") != 0 || slo.Text("<=", " and ") != "TTFT <= 200 ms and TPOT <= 30.5 ms" {
		t.Errorf("%+v, %v", slo, err)
	}
	for _, c := range []struct {
		ttft, tpot float64
		want       bool
	}{{200, 30.5, true}, {200.001, 30, false}, {1, 30.6, false}, {math.NaN(), 1, false}} {
		if got := slo.Kept(func(metric string) float64 { return map[string]float64{"ttft": c.ttft, "tpot": c.tpot}[metric] }); got != c.want {
			t.Errorf("%+v: kept %t", c, got)
		}
	}
	if !SLO(nil).Kept(func(string) float64 { return 1e9 }) || SLO(nil).Text("", "") != "" {
		t.Error("an SLO without bounds bounds something")
	}
}
