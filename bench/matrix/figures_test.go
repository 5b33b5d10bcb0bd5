package matrix

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFigures reads what the real tools left: from their result file, and, where there is none,
// from the report on their standard output, the same to the digits that are printed.
func TestFigures(t *testing.T) {
	for tool, want := range map[string]map[string]float64{
		"vllm": {
			"successful_requests": 6, "failed_requests": 0, "total_input_tokens": 384, "total_generated_tokens": 48, "duration_s": 0.8523240330032422,
			"mean_ttft_ms": 21.27558766733273, "p99_itl_ms": 15.224333513615411, "mean_e2el_ms": 102.0574938338541, "output_token_throughput": 56.31660981196034,
		},
		"sglang": {"successful_requests": 6, "total_input_tokens": 186, "total_generated_tokens": 29, "request_throughput": 46.86446830890078},
	} {
		folder := filepath.Join("testdata", tool)
		exact, err := ReadFigures(folder)
		if err != nil || len(exact) != 1 || exact[0].Source != filepath.Join("result", tool+map[string]string{"vllm": ".json", "sglang": ".jsonl"}[tool]) {
			t.Fatalf("%s: %+v, %v", tool, exact, err)
		}
		for key, v := range want {
			if got, ok := exact[0].Values[key]; !ok || got != v {
				t.Errorf("%s: %s is %v, want %v", tool, key, got, v)
			}
		}
		text, err := os.ReadFile(filepath.Join(folder, stdoutFile))
		if err != nil {
			t.Fatal(err)
		}
		alone := t.TempDir()
		writeFile(t, filepath.Join(alone, stdoutFile), "Warming up: 5\n"+string(text)+"\nbye: 7\n")
		printed, err := ReadFigures(alone)
		if err != nil || len(printed) != 1 || len(printed[0].Values) < 15 {
			t.Fatalf("%s: %+v, %v, want %+v", tool, printed, err, exact)
		}
		for key, got := range printed[0].Values {
			if v, ok := exact[0].Values[key]; ok && math.Abs(got-v) > 0.0051 {
				t.Errorf("%s: %s is %v in the report, %v in the file", tool, key, got, v)
			}
		}
	}
}

// TestFiguresOf: a summary.json goes before all else, each row and each report counts, and
// files of something else do not.
func TestFiguresOf(t *testing.T) {
	report := "============ Serving Benchmark Result ============\nMean TTFT (ms):      1.50   \n==================================================\n"
	vllm := `{"completed": 3, "duration": 2.5, "mean_ttft_ms": 4, "request_rate": Infinity, "total_token_throughput": 1}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []float64 // mean TTFT of each
	}{
		{"nothing", map[string]string{"stdout": "hello: 1\n"}, nil},
		{"two reports", map[string]string{"stdout": report + strings.ReplaceAll(report, "1.50", "2.50")}, []float64{1.5, 2.5}},
		{"an appended file", map[string]string{"stdout": report, "result/a.jsonl": vllm + "\n" + strings.ReplaceAll(vllm, "4", "5") + "\n"}, []float64{4, 5}},
		{"a summary", map[string]string{
			"stdout": report, "result/a.json": vllm, "result/sub/summary.json": `{"rows": [{"metrics": {"mean_ttft_ms": 7}}, {"metrics": null}, {"metrics": {"mean_ttft_ms": 8}}]}`,
		}, []float64{7, 8}},
		{"others", map[string]string{"stdout": report, "result/a.json": `{"mean_ttft_ms": 4}`, "result/b.json": "[1", "result/c.jsonl": "x", "result/summary.json": "[]"}, []float64{1.5}},
		{"half a line", map[string]string{"stdout": report, "result/a.jsonl": vllm + "\n" + `{"completed": 4, "dura`}, []float64{1.5}},
	} {
		folder := t.TempDir()
		for name, text := range c.files {
			writeFile(t, filepath.Join(folder, name), text)
		}
		all, err := ReadFigures(folder)
		var got []float64
		for _, f := range all {
			got = append(got, f.Values["mean_ttft_ms"])
		}
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	}
}
