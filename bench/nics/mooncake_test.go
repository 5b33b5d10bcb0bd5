package nics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvferry/bench"
	"kvferry/bench/client"
)

func cellOf(setting, handoff string, n int, ttft, tpot float64) MooncakeCell {
	m := &client.Metrics{KVBytes: 1.31e9, KVBlocksChecked: 1274, Stages: &client.Stages{Wire: 10}}
	m.MeanTTFTMS, m.MedianTTFTMS, m.P99TTFTMS, m.MeanTPOTMS, m.MedianTPOTMS, m.P99TPOTMS = ttft, ttft, ttft, tpot, tpot, tpot
	return MooncakeCell{n, bench.Row{Setting: setting, Handoff: handoff, Metrics: m}, slices.Repeat([]float64{1 / float64(n)}, n)}
}

func TestMooncakeTable(t *testing.T) {
	cells := []MooncakeCell{
		cellOf("tcp", "v0", 1, 1091.8, 48.9), cellOf("layerwise", "layerwise", 1, 358.1, 14.8),
		cellOf("tcp", "v0", 2, 800, 30),
		{2, bench.Row{Setting: "layerwise", Handoff: "layerwise"}, nil},
	}
	want := `1024/q2, 40 requests a cell; compute modelled, transfer measured on N x 2 Gbit/s real links; ms
setting    hand-off   NICs  TTFT mean  median     p99  TPOT mean  median   p99  wire mean  KV GB  failed  blocks checked  bad   % by NIC
tcp        v0            1     1091.8  1091.8  1091.8       48.9    48.9  48.9       10.0   1.31       0            1274    0      100.0
tcp        v0            2      800.0   800.0   800.0       30.0    30.0  30.0       10.0   1.31       0            1274    0  50.0/50.0
layerwise  layerwise     1      358.1   358.1   358.1       14.8    14.8  14.8       10.0   1.31       0            1274    0      100.0
layerwise  layerwise     2          -       -       -          -       -     -          -      -       -               -    -          -

`
	if got := mooncakeTable(cells, 2e9, "1024/q2", 40).Text(); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

func TestMooncakeConfigFaults(t *testing.T) {
	err := (&MooncakeConfig{Rate: -1, Counts: []int{9}, Settings: []string{"chunked"}, Row: "all", Prompts: -1}).Validate()
	for _, want := range []string{"Rate: -1:", "Counts: 9: use 1 to 8", `Settings: "chunked": use tcp, pull`, `Row: "all": `, "Prompts: -1:", "Out: none given"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "tcp-2"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tcp-2", "summary.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err = (&MooncakeConfig{Counts: []int{1, 2}, Settings: []string{"tcp"}, Row: "1024/q2", Out: dir}).Validate()
	if err == nil || !strings.Contains(err.Error(), `tcp-2": it has results already (summary.json)`) || strings.Contains(err.Error(), "tcp-1") {
		t.Errorf("results of an earlier run: %v", err)
	}
	if _, err := Mooncake(t.Context(), MooncakeConfig{Rate: 1e9, Row: "1024/q2", Prompts: 1, Out: t.TempDir(), Bin: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("no programs: %v", err)
	}
}

func TestReadRow(t *testing.T) {
	dir := t.TempDir()
	put := func(s bench.Summary) {
		text, _ := json.Marshal(s)
		_ = os.WriteFile(filepath.Join(dir, "summary.json"), text, 0o644)
	}
	if _, err := readRow(dir); err == nil {
		t.Error("no file")
	}
	put(bench.Summary{Rows: []bench.Row{{Setting: "a"}, {Setting: "b"}}})
	if _, err := readRow(dir); err == nil || !strings.Contains(err.Error(), "2 rows") {
		t.Error(err)
	}
	put(bench.Summary{Rows: []bench.Row{{Setting: "a"}}})
	if r, err := readRow(dir); err != nil || r.Setting != "a" {
		t.Error(err)
	}
}
