package observe

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// metricsServer starts a server that answers with one page of testdata first, and with another from then on.
func metricsServer(t *testing.T, first, then string) string {
	t.Helper()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		name := first
		if asked.Add(1) > 1 {
			name = then
		}
		text, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			t.Error(err)
		}
		w.Write(text)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestTogether: the counts of several engines are compared with the client's as one; each has
// its table below.
func TestTogether(t *testing.T) {
	pages := []MetricsPage{{URL: metricsServer(t, "vllm_before", "vllm_after")}, {URL: metricsServer(t, "vllm_before", "vllm_after")}, {URL: metricsServer(t, "sglang_before", "sglang_after")}}
	c := ClientFigures{Sent: 400, Answered: 400, InputTokens: 400000, OutputTokens: 40000, WantedHitRate: 0.25, TTFTMS: 45, ITLMS: 12.1, WholeMS: 1251}
	r := StartScrape(t.Context(), http.DefaultClient, pages).After(t.Context(), c)
	if len(r.Server) != 4 || len(r.Words) != 0 || len(r.Missing) != 0 {
		t.Fatalf("%d accounts, words %v, missing %v", len(r.Server), r.Words, r.Missing)
	}
	all, one := r.Server[0], r.Server[1]
	want(t, all, map[string]float64{requests: 400, prefixQueries: 400000, prefixHits: 100000})
	if rate, ok := all.HitRate(); !ok || rate != 0.25 {
		t.Errorf("hit rate %v", rate)
	}
	if a, b := all.Latencies[ttft], one.Latencies[ttft]; a.Values != 2*b.Values || a.P99 != b.P99 {
		t.Errorf("%+v together, %+v of one", a, b)
	}
	tables := r.Tables()
	if text := tables[0].Text(); !strings.Contains(text, "2 servers together") || !strings.Contains(text, "25.0 wanted") {
		t.Errorf("%s", text)
	}
	if len(tables) != 4 || strings.Contains(tables[1].Text(), "400000") {
		t.Errorf("%d tables; one engine is compared with the whole:\n%s", len(tables), tables[1].Text())
	}

	// prefill and decode engines count each request both.
	c.Sent, c.Answered, c.InputTokens, c.OutputTokens = 200, 200, 200000, 20000
	r = StartScrape(t.Context(), http.DefaultClient, []MetricsPage{{URL: metricsServer(t, "vllm_before", "vllm_after")}, {URL: metricsServer(t, "vllm_before", "vllm_after")}}).After(t.Context(), c)
	if len(r.Words) != 1 || !strings.Contains(r.Words[0].Text, "others use these 2 servers, or several of them count a request") {
		t.Errorf("%v", r.Words)
	}

	// One that was restarted does not count, and what another counted more does not hide it.
	r = StartScrape(t.Context(), http.DefaultClient, []MetricsPage{{URL: metricsServer(t, "vllm_before", "vllm_after")}, {URL: metricsServer(t, "vllm_after", "vllm_before")}}).After(t.Context(), c)
	if _, ok := r.Server[0].Counts[requests]; ok || len(r.Words) == 0 || r.Words[0].Rule != "went back" {
		t.Errorf("%+v, %v", r.Server[0].Counts, r.Words)
	}
}
