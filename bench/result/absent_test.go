package result

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestAbsent: latencies that a run has not are missing, and 0 in no file: of answers that came
// in one piece, of answers of one token, and of a run without any answer. Why is said once.
func TestAbsent(t *testing.T) {
	vllm := func(completed, tokens int, tpot float64) string {
		return fmt.Sprintf(`{"endpoint_type": "openai", "completed": %d, "failed": %d, "total_input_tokens": 8, "total_output_tokens": %d, "total_token_throughput": 5,
"mean_ttft_ms": %d, "p99_ttft_ms": %[4]d, "mean_tpot_ms": %v, "p99_tpot_ms": %[5]v, "mean_itl_ms": 0, "mean_e2el_ms": %[4]d}`, completed, 2-completed, completed*tokens, 300*min(completed, 1), tpot)
	}
	sglang := func(tokens int, tpot string) string {
		return fmt.Sprintf(`{"dataset_name": "random-ids", "completed": 2, "total_output_tokens": %d, "mean_ttft_ms": 300, "mean_tpot_ms": %s, "mean_itl_ms": 0.0,
"mean_e2e_latency_ms": 300.0, "input_lens": [4, 4], "output_lens": [%d, %[3]d], "ttfts": [0.3, 0.3], "itls": [[], []], "errors": ["", ""]}`, 2*tokens, tpot, tokens)
	}
	ours := func(clock, metrics string) string {
		return `{"rows": [{"clock": "` + clock + `", "faults": [], "metrics": {"successful_requests": 2, "prompt_tokens": 8, "output_tokens": 16, ` + metrics +
			`, "latency_ms": {"ttft": {"mean": 300}, "ttft_due": {"mean": 301}, "tpot": {"mean": 0}, "e2el": {"mean": 300}}}}], "config": {}}`
	}
	text := "============ Serving Benchmark Result ============\nSuccessful requests:  2\nTotal generated tokens:  16\nMean TTFT (ms):  300.00\nMean TPOT (ms):  0.00\nMean ITL (ms):  0.00\nMean E2EL (ms):  300.00\n====\n"
	for _, c := range []struct {
		name, file, text string
		has, why         string // latencies by mean, and what is said
	}{
		{"vLLM", "v.json", vllm(2, 8, 0), "e2el", notStreamed},
		{"vLLM, streamed", "v.json", vllm(2, 8, 7.5), "e2el itl tpot ttft", ""},
		{"vLLM, one token", "v.json", vllm(2, 1, 0), "e2el ttft", ""},
		{"vLLM, all failed", "v.json", vllm(0, 0, 0), "", noneSucceeded},
		{"SGLang", "s.jsonl", sglang(8, "-0.0009148381650447845"), "e2el", notStreamed},
		{"SGLang, one token", "s.jsonl", sglang(1, "0"), "e2el ttft", ""},
		{"a text", "report.txt", text, "e2el", notStreamed},
		{"a log", "log.txt", "[transformers] PyTorch was not found.\n" + text, "e2el", notStreamed},
		{"kvferry", "summary.json", ours("real", `"mean_itl_ms": 0`), "e2el", notStreamed},
		{"kvferry, at no cost", "summary.json", ours("virtual", `"mean_itl_ms": 0`), "e2el itl tpot ttft_due ttft", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			all, err := Read(path)
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			var has []string
			for _, key := range slices.Sorted(maps.Keys(all[0].Figures)) {
				if name, ok := strings.CutPrefix(key, "mean_"); ok {
					has = append(has, strings.TrimSuffix(name, "_ms"))
				} else if strings.HasSuffix(key, "_tpot_ms") && !strings.Contains(c.has, "tpot") {
					t.Errorf("%s is there", key)
				}
			}
			if got := strings.Join(has, " "); got != c.has {
				t.Errorf("it has %s, want %s", got, c.has)
			}
			for _, name := range []string{nameTTFT, nameTPOT, nameITL} {
				if values := all[0].Values(name); values != nil && !strings.Contains(c.has, name) {
					t.Errorf("%s by request: %v", name, values)
				}
			}
			if got := strings.Join(all[0].Doubts, "; "); got != c.why {
				t.Errorf("said: %q, want %q", got, c.why)
			}
		})
	}
}
