package nixl

import (
	"os"
	"testing"

	"kvferry/lab/vllm"
)

// TestReal: NIXL itself, its Python package, with the plugin, alone and around UCX. It takes what kvferry lab vllm setup makes.
func TestReal(t *testing.T) {
	if os.Getenv("KVFERRY_VLLM") != "1" {
		t.Skip("SKIPPED: the plugin is not tried in NIXL itself: KVFERRY_VLLM=1 has it tried, after kvferry lab vllm setup")
	}
	folder, err := vllm.Open("")
	if err != nil {
		t.Fatal(err)
	}
	run(t, nil, folder.Python(), "testdata/agents.py", built(t, ""), t.TempDir())
}
