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
	_, stdout, _ := command(t.Context(), "sim", "--dataset-name", "nothing", "--help")
	if !strings.Contains(stdout, " --sonnet-input-len ") || !strings.Contains(stdout, " --min-turns ") {
		t.Errorf("of a dataset that there is not:\n%s", stdout)
	}
}
