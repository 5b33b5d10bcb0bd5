package cli

import (
	"strings"
	"testing"
)

// TestSimulateMigration: nodes that serve alone have NICs if requests go from one to another.
func TestSimulateMigration(t *testing.T) {
	load := []string{"sim", "--both", "2", "--placement", "round-robin", "--num-prompts", "60", "--request-rate", "8", "--random-range-ratio", "0.9"}
	run := func(more ...string) (int, string, string) {
		return command(t.Context(), append(append(load[:len(load):len(load)], more...), "--out", t.TempDir())...)
	}
	code, stdout, stderr := run("--migration", "periodic", "--migration-interval", "50ms", "--migration-threshold", "1", "--link", "10gbit")
	if code != 0 || !strings.Contains(stdout, "migration periodic, every 50ms beyond 1 requests") || !strings.Contains(stdout, " times a running request went on on another node, ") || strings.Contains(stdout, " 0 times ") {
		t.Errorf("exit %d: %s%s", code, stderr, stdout)
	}
	if code, stdout, stderr = run("--sweep", "migration=none,periodic"); code != 0 || strings.Count(stderr, "point ") != 2 {
		t.Errorf("exit %d: %s%s", code, stderr, stdout)
	}
	if code, _, stderr = run("--link", "10gbit"); code != 2 || !strings.Contains(stderr, "--link") || !strings.Contains(stderr, "--migration") {
		t.Errorf("a link without migration: exit %d: %s", code, stderr)
	}
	if code, _, stderr = run("--migration", "nonsense"); code != 2 || !strings.Contains(stderr, "--migration") || !strings.Contains(stderr, "periodic") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
