package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/document"
	"kvferry/bench/sglang"
)

// TestSGLangClocks: a published run by both clocks: the same load, all of it answered, and in real time no
// sooner than the modelled server computes. How near the clocks are is measured on a quiet machine
// (docs/sglang.md).
func TestSGLangClocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	code, stdout, stderr := command(t.Context(), "reproduce", "sglang", "--clock", "both", "--runs", "qwen2.5-0.5b", "--out", dir)
	if code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	text, err := os.ReadFile(filepath.Join(dir, document.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var r sglang.Results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 2 || r.Rows[0].Clock != "virtual" || r.Rows[1].Clock != "real" {
		t.Fatalf("rows %+v", r.Rows)
	}
	virtual, real := r.Rows[0], r.Rows[1]
	if len(real.Faults) > 0 || real.Counts != virtual.Counts {
		t.Errorf("faults %q, %+v and %+v", real.Faults, real.Counts, virtual.Counts)
	}
	if real.Disturbance == nil || virtual.Disturbance != nil {
		t.Errorf("disturbed: %v in real time, %v in virtual time", real.Disturbance, virtual.Disturbance)
	}
	if got, want := real.Metrics["mean_e2e_ms"], virtual.Metrics["mean_e2e_ms"]; got < 0.9*want {
		t.Errorf("%.0f ms in real time, %.0f ms computed", got, want)
	}
	for _, want := range []string{"qwen2.5-0.5b in real time", "real time beside virtual time", "qwen2.5-0.5b 200"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("it does not say %q:\n%s", want, stdout)
		}
	}
}
