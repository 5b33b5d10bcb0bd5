package engines

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReal: real vLLM, all settings: each row is sound, or says why it could not run. It takes some
// minutes, 5 GB of memory, and what kvferry lab vllm setup makes.
func TestReal(t *testing.T) {
	if os.Getenv("KVFERRY_VLLM") != "1" {
		t.Skip("SKIPPED: connectors of real vLLM are not run: KVFERRY_VLLM=1 has them run, after kvferry lab vllm setup")
	}
	out := filepath.Join(t.TempDir(), "out")
	var stdout bytes.Buffer
	err := Run(t.Context(), Config{Prompts: 6, Rounds: 1, Out: out, Stdout: &stdout, Progress: os.Stderr})
	t.Log(stdout.String())
	if err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for _, row := range summary(t, out) {
		seen[row.Setting] = true
		if row.Error != "" || row.Prompts != 2 || row.Identical != 2 || !row.DigestsEqual {
			t.Errorf("%+v", row)
		}
	}
	if got := len(seen); got != len(Names()) {
		t.Errorf("%d settings of %s", got, strings.Join(Names(), ", "))
	}
}
