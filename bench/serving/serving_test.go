package serving

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/bench/client"
	"kvferry/bench/client/clienttest"
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
		{"memory", func(r *Result) { r.Own = map[string]int64{"proxy": 30e6, "nondisagg-0": 21e6}; r.InUse = 99 }, "memory of their own", "MISSED"},
		{"a large program", func(r *Result) { r.Program = 90e6 }, "", "90.00 MB"},
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

// TestClosedLoop: every request is told of, and the first that fails ends the loop.
func TestClosedLoop(t *testing.T) {
	f := &clienttest.Server{}
	var n atomic.Int32
	f.Behave = func(w http.ResponseWriter, _ *http.Request, _ *clienttest.Completion) bool {
		if n.Add(1) != 25 {
			return false
		}
		http.Error(w, "pool is gone", http.StatusInternalServerError)
		return true
	}
	clienttest.NewServer(t, f)
	asker := client.New(client.Config{URL: f.URL})
	defer asker.Close()
	told := 0
	took, err := closedLoop(t.Context(), asker, "fake-7b", 4, 20, 3, func(r *client.Record) {
		if told++; r.PromptTokens != promptTokens || len(r.TokenTimes) != 3 {
			t.Errorf("%+v", r)
		}
	})
	if err != nil || told != 20 || took <= 0 {
		t.Errorf("%d requests in %v, %v", told, took, err)
	}
	_, err = closedLoop(t.Context(), asker, "fake-7b", 4, 100000, 3, nil)
	if err == nil || !strings.Contains(err.Error(), "pool is gone") || n.Load() > 50000 {
		t.Errorf("%v after %d requests", err, n.Load())
	}
}
