package nics

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
)

// TestHandoffResult: the terms are medians of the client's records, and the bound is their sum.
func TestHandoffResult(t *testing.T) {
	cfg := HandoffConfig{Handoff: "layerwise", NICs: 1, Rate: 4e9, RTT: 10 * time.Millisecond, Prompts: 3, InputLen: 512, Out: t.TempDir()}
	var b strings.Builder
	cfg.Stdout = &b
	write := func(records ...client.Record) {
		t.Helper()
		var lines []byte
		for _, r := range records {
			line, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(append(lines, line...), '\n')
		}
		if err := os.WriteFile(filepath.Join(cfg.Out, "results.jsonl"), lines, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	record := func(sent, first, second float64, prefill client.Count) client.Record {
		return client.Record{
			Status: client.StatusOK, Sent: sent, FirstToken: sent + first, TokenTimes: []float64{sent + first, sent + second}, Usage: &client.Usage{},
			Breakdown: &client.Breakdown{PrefillUS: prefill},
		}
	}
	write(record(1, 0.120, 0.150, 110_000), record(2, 0.200, 0.300, 116_000), record(3, 0.100, 0.147, 90_000))
	r, err := cfg.read()
	if err != nil {
		t.Fatal(err)
	}
	// A layer of 512 tokens is 1 MiB; the step is the profile's.
	wire := float64(1<<20) / (4e9 / 8 * 1448 / 1514) * 1e3
	want := HandoffResult{Prefill: 110, RoundTrips: 20, Wire: wire, DecodeStep: 11.47, Bound: 110 + 20 + wire + 11.47, First: 120, Second: 150}
	for name, pair := range map[string][2]float64{
		"prefill": {r.Prefill, want.Prefill}, "round trips": {r.RoundTrips, want.RoundTrips}, "wire": {r.Wire, want.Wire},
		"step": {r.DecodeStep, want.DecodeStep}, "bound": {r.Bound, want.Bound}, "first": {r.First, want.First}, "second": {r.Second, want.Second},
	} {
		if math.Abs(pair[0]-pair[1]) > 1e-6 {
			t.Errorf("%s: %v, want %v", name, pair[0], pair[1])
		}
	}
	r.Ahead, r.Undirected = 4, 1
	if err := cfg.write(r); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != `layerwise over 1 x 4 Gbit/s, RTT 10ms; 3 prompts of 512 tokens, one at a time; medians, ms
what                      ms
prefill                110.0
2 round trips           20.0
wire of the last part    2.2
one decode step         11.5
together: the bound    143.7
second token           150.0
first token            120.0

4 prompts went ahead, the client's first look included; 1 of them were given up
` {
		t.Errorf("\n%s", got)
	}
	write(record(1, 0.1, 0.2, 1))
	if _, err := cfg.read(); err == nil || !strings.Contains(err.Error(), "1 of 3 requests") {
		t.Errorf("requests are missing: %v", err)
	}
	bad := record(1, 0.1, 0.2, 1)
	bad.TokenTimes = bad.TokenTimes[:1]
	write(bad)
	if _, err := cfg.read(); err == nil || !strings.Contains(err.Error(), "1 tokens") {
		t.Errorf("a token is missing: %v", err)
	}
}

func TestCountAheads(t *testing.T) {
	page, err := observe.ReadMetrics(strings.NewReader(`# TYPE kvferry:prompts_ahead_total counter
kvferry:prompts_ahead_total{engine="0",model_name="m"} 51
kvferry:prompts_undirected_total{engine="0",model_name="m"} 2
`))
	if err != nil {
		t.Fatal(err)
	}
	if ahead, undirected := countAheads(page); ahead != 51 || undirected != 2 {
		t.Errorf("%d, %d", ahead, undirected)
	}
}
