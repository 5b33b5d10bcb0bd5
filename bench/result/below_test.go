package result

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadBelow reads what the real tools left: their result file, and the report on their
// standard output, the same to the digits that are printed.
func TestReadBelow(t *testing.T) {
	for tool, want := range map[string]map[string]float64{
		"vllm": {
			"successful_requests": 6, "failed_requests": 0, "total_input_tokens": 384, "total_generated_tokens": 48, "duration_s": 0.8523240330032422,
			"mean_ttft_ms": 21.27558766733273, "p99_itl_ms": 15.224333513615411, "mean_e2el_ms": 102.0574938338541, "output_token_throughput": 56.31660981196034,
		},
		"sglang": {"successful_requests": 6, "total_input_tokens": 186, "total_generated_tokens": 29, "request_throughput": 46.86446830890078},
	} {
		folder := filepath.Join("testdata", "below", tool)
		exact, err := ReadBelow(filepath.Join(folder, "result"))
		if err != nil || len(exact) != 1 || !strings.HasPrefix(exact[0].Source, filepath.Join(folder, "result", tool+".json")) {
			t.Fatalf("%s: %+v, %v", tool, exact, err)
		}
		for key, v := range want {
			if got, ok := exact[0].Figures[key]; !ok || got != v {
				t.Errorf("%s: %s is %v, want %v", tool, key, got, v)
			}
		}
		printed, err := ReadBelow(filepath.Join(folder, "stdout"))
		if err != nil || len(printed) != 1 || len(printed[0].Figures) < 15 {
			t.Fatalf("%s: %+v, %v, want %+v", tool, printed, err, exact)
		}
		for key, got := range printed[0].Figures {
			if v, ok := exact[0].Figures[key]; ok && math.Abs(got-v) > 0.0051 {
				t.Errorf("%s: %s is %v in the report, %v in the file", tool, key, got, v)
			}
		}
	}
}

// TestReadBelowOrder: a summary.json goes before all else, each row and each report counts, and
// files of something else do not.
func TestReadBelowOrder(t *testing.T) {
	report := "============ Serving Benchmark Result ============\nMean TTFT (ms):      1.50   \n==================================================\n"
	vllm := `{"completed": 3, "duration": 2.5, "mean_ttft_ms": 4, "request_rate": Infinity, "total_token_throughput": 1}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []float64 // mean TTFT of each
	}{
		{"nothing", map[string]string{"stdout": "hello: 1\n"}, nil},
		{"two reports", map[string]string{"stdout": report + strings.ReplaceAll(report, "1.50", "2.50")}, []float64{1.5, 2.5}},
		{"an appended file", map[string]string{"a.jsonl": vllm + "\n" + strings.ReplaceAll(vllm, "4", "5") + "\n"}, []float64{4, 5}},
		{"a summary", map[string]string{
			"a.json": vllm, "sub/summary.json": `{"rows": [{"metrics": {"mean_ttft_ms": 7}}, {"metrics": null}, {"metrics": {"mean_ttft_ms": 8}}]}`,
		}, []float64{7, 8}},
		{"others", map[string]string{"a.json": `{"mean_ttft_ms": 4}`, "b.json": "[1", "c.jsonl": "x", "summary.json": "[]", "d.log": report}, nil},
		{"half a line", map[string]string{"a.jsonl": vllm + "\n" + `{"completed": 4, "dura`}, nil},
	} {
		folder := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(folder, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		if c.files["stdout"] != "" {
			folder = filepath.Join(folder, "stdout")
		}
		all, err := ReadBelow(folder)
		var got []float64
		for _, f := range all {
			got = append(got, f.Figures["mean_ttft_ms"])
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
	if all, err := ReadBelow("/no/such/folder"); err != nil || all != nil {
		t.Errorf("%v, %v", all, err)
	}
}
