package serving

import (
	"strings"
	"testing"
)

// TestServingLimits: what is over its limit is named and fails, but for the ITL of a
// machine that had no CPU left for it.
func TestServingLimits(t *testing.T) {
	good := Result{CPUPerToken: map[string]float64{"proxy": 3}, MedianITL: 10.05, Own: map[string]int64{"proxy": 30e6}, Program: 20e6, InUse: 50}
	for _, tc := range []struct {
		name   string
		change func(*Result)
		fault  string // empty if it passes
		says   string
	}{
		{"good", func(*Result) {}, "", "50.00 %"},
		{"slow ITL", func(r *Result) { r.MedianITL = 10.2 }, "median ITL's distance", "MISSED"},
		{"fast ITL", func(r *Result) { r.MedianITL = 9.8 }, "median ITL's distance", "MISSED"},
		{"no CPU left", func(r *Result) { r.MedianITL, r.InUse = 10.2, 97 }, "", "not judged"},
		{"not known", func(r *Result) { r.MedianITL, r.InUse = 10.2, -1 }, "median ITL's distance", "MISSED"},
		{"memory", func(r *Result) { r.Own = map[string]int64{"proxy": 81e6}; r.InUse = 99 }, "resident memory", "MISSED"},
		{"CPU", func(r *Result) { r.CPUPerToken = map[string]float64{"proxy": 13} }, "CPU a token", "MISSED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := good
			tc.change(&r)
			var out strings.Builder
			err := report(&out, []Result{r})
			if (err == nil) != (tc.fault == "") || err != nil && !strings.Contains(err.Error(), tc.fault) || !strings.Contains(out.String(), tc.says) {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}
