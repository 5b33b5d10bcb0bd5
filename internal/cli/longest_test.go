package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLongest: whatever file a load is from, its longest request is served unless --max-model-len
// says otherwise; then it is refused by the cluster, and counted.
func TestLongest(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	blocks := strings.TrimSuffix(strings.Repeat("9,", 40), ",")
	mooncake := file(`{"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
{"timestamp": 900, "input_length": 20000, "output_length": 4, "hash_ids": [` + blocks + `]}
`)
	turns := file(`{"session_id": "a", "input_length": 600, "output_length": 4}
{"session_id": "a", "input_length": 20000, "output_length": 4}
`)
	for _, args := range []string{
		"--trace " + mooncake,
		"--dataset-name timed-trace --timed-trace-chunk-hash-size 512 --timed-trace-sec-multiplier 0.001 --dataset-path " + mooncake,
		"--dataset-name mooncake --mooncake-num-rounds 4 --dataset-path " + mooncake,
		"--dataset-name conversation --dataset-path " + turns,
	} {
		for _, most := range []struct {
			flag         string
			done, failed float64
		}{{"", 2, 0}, {" --max-model-len 8000", 1, 1}} {
			if strings.Contains(args, "rounds") { // texts of 300 and 20,000 letters and more
				most.done, most.failed = 8-4*most.failed, 4*most.failed
			}
			rows, _, _ := rowsOf(t, 0, strings.Fields("--clock virtual --max-failures 4 "+args+most.flag)...)
			if m := rows[0].Metrics; m["successful_requests"] != most.done || m["failed_requests"] != most.failed {
				t.Errorf("%s%s: %v requests done and %v failed, want %v and %v", args, most.flag, m["successful_requests"], m["failed_requests"], most.done, most.failed)
			}
		}
	}
}

// TestHitRate: in virtual time too the prefix hit rate that was had stands beside the wanted one.
func TestHitRate(t *testing.T) {
	rows, stdout, _ := rowsOf(t, 0, strings.Fields("--clock virtual --num-prompts 200 --request-rate 5 --random-input-len 320 --random-output-len 2 --prefix-hit-rate 0.6")...)
	m := rows[0].Metrics
	if share := m["cached_tokens"].(float64) / m["total_input_tokens"].(float64); share < 0.55 || share > 0.65 || !strings.Contains(stdout, "% of the prompt tokens were in it, 60.0 % were wanted") {
		t.Errorf("%.3f of the prompt tokens were cached:\n%s", share, stdout)
	}
}
