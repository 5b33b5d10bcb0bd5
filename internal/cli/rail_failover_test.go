package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFailover(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := command(t.Context(), "rail", "failover", "--rail", "127.0.0.1:0", "--rail", "127.0.0.1:0", "--duration", "100ms", "--warmup", "5ms",
		"--segment", "4m", "--block", "16k", "--slice", "8k", "--cut", "20ms:1", "--restore", "60ms:1", "--out", dir)
	for _, want := range []string{"LOADING 2 rails", "link-down", "link-up", "nothing lost, nothing twice", "results: " + dir} {
		if code != 0 || !strings.Contains(stdout, want) {
			t.Fatalf("exit %d, no %q: %s\n%s", code, want, stderr, stdout)
		}
	}
	for line := range strings.Lines(stderr) {
		// A rail may warn of the machine: that not everybody may choose TCP's congestion control.
		if !strings.Contains(line, "level=WARN") {
			t.Errorf("no terminal, and stderr has %q", line)
		}
	}
	for _, name := range []string{"failover.json", "table.md", "report.html"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	code, _, stderr = command(t.Context(), "rail", "failover", "--rail", "127.0.0.1:0", "--out", dir, "127.0.0.1:1")
	if code != ExitFailed || !strings.Contains(stderr, "kvferry rail bench --server") {
		t.Errorf("no server: exit %d: %s", code, stderr)
	}
}

// TestFailoverUsage: every wrong flag is named with what would do.
func TestFailoverUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"", []string{"--rail: none given: name one"}},
		{"--rail mem --select affinity,static", []string{"--select"}},
		{"--rail mem --fault 2s:kill:0 --cut 2s --restore x:0", []string{"--fault:", "link-down, link-up", "--cut: \"2s\": write TIME:RAIL", "--restore:"}},
		{"--rail mem --fault 2s:clear:3", []string{`--fault: "2s:clear:3": it is of rail 3: use 0 to 0`}},
		{"--rail mem --cut 2s:0 --restore 1s:0", []string{"put them in order"}},
		{"--rail mem --faults x --cut 1s:0", []string{`--faults: "x": faults are given one by one too: leave one out`}},
		{"--rail mem --duration 0s --timeout 0s --warmup -1s", []string{"--duration: 0s:", "--timeout: 0s:", "--warmup: -1s:"}},
		{"--rail mem --batch 0 --depth 0 --threads 0 --block 0 --slice x --segment y --sample 1us", []string{"--batch:", "--depth:", "--threads:", `--block: "0": write`, `--slice: "x": write`, `--segment: "y": write`, "--sample: 1µs: use 1ms"}},
		{"--rail mem --batch 200000 --depth 200000 --threads 200000 --slice 2g", []string{"--batch: 200000: use 1 to", "--depth: 200000:", "--threads: 200000:", `--slice: "2g": use up to 1g`}},
	} {
		refused(t, "rail failover "+c.args, c.want...)
	}
}
