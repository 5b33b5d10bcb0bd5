package cli

import (
	"strings"
	"testing"

	"kvferry/load"
)

// TestDatasetHelp: help with a dataset's name lists the flags that all loads read and its own, and none of another's.
func TestDatasetHelp(t *testing.T) {
	for _, cmd := range []string{"bench", "sim"} {
		for _, k := range load.Kinds() {
			_, stdout, _ := command(t.Context(), cmd, "--dataset-name", strings.ReplaceAll(k.Name, "_", "-"), "--help")
			s := load.Spec{Kind: k.Name}
			for _, one := range load.AllKnobs() {
				if has := strings.Contains(stdout, "\n      --"+one.Name+" "); has != s.Offers(one.Name) {
					t.Errorf("%s --dataset-name %s --help lists --%s: %t", cmd, k.Name, one.Name, has)
				}
			}
			for _, name := range []string{"--num-prompts", "--out", "--goodput"} {
				if !strings.Contains(stdout, "\n      "+name+" ") {
					t.Errorf("%s --dataset-name %s --help does not list %s", cmd, k.Name, name)
				}
			}
		}
	}
	_, stdout, _ := command(t.Context(), "sim", "--dataset-name", "nothing", "--help-all")
	if !strings.Contains(stdout, " --sonnet-input-len ") || !strings.Contains(stdout, " --min-turns ") {
		t.Errorf("of a dataset that there is not:\n%s", stdout)
	}
}

// TestPrefixLen: prompts may begin with the same tokens without a wanted hit rate, whose options alone are refused.
func TestPrefixLen(t *testing.T) {
	code, _, stderr := command(t.Context(), "sim", "--num-prompts", "3", "--random-prefix-len", "5", "--out", t.TempDir())
	if code != 0 {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
	code, _, stderr = command(t.Context(), "sim", "--num-prompts", "3", "--prefix-groups", "5", "--out", t.TempDir())
	if code != ExitUsage || !strings.Contains(stderr, "--prefix-groups: it is for --prefix-hit-rate: give both, or leave it out") {
		t.Errorf("exit %d:\n%s", code, stderr)
	}
}
