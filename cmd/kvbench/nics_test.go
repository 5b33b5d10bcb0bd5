package main

import (
	"strings"
	"testing"
)

// TestNICsUsage: every wrong flag is named with what would do. The experiments
// themselves are make bench-nics and make mooncake-nics.
func TestNICsUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"nics --rounds 0", []string{"--rounds 0", "1 round"}},
		{"nics --rounds -1 --duration 1ms", []string{"--rounds is -1", "--duration is 1ms: use 100ms"}},
		{"nics x", []string{"unknown command"}},
		{"nics mooncake --rate fast --counts x --num-prompts 0", []string{"--rate", "--counts", "--num-prompts"}},
		{"nics mooncake --counts 9 --settings nondisagg --row all", []string{"--counts has 9", "--settings has", "--row is"}},
	} {
		code, stdout, stderr := kvbench(t.Context(), strings.Fields(c.args)...)
		if code != exitUsage || stdout != "" {
			t.Errorf("%s: exit %d, want %d: %s%s", c.args, code, exitUsage, stdout, stderr)
		}
		for _, want := range append(c.want, "--help") {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}
