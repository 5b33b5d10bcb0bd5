package cli

import (
	"strings"
	"testing"
)

// TestCompletion: a shell that asks is told commands, flags and values, also of a program
// with commands, and nothing is run.
func TestCompletion(t *testing.T) {
	for typed, want := range map[string]string{
		"r":                      "run",
		"run --de":               "--depth",
		"run --out ":             "here,hear,there/",
		"run --out he":           "here,hear",
		"run --out here,":        "here,hear;here,there/",
		"run --out=th":           "there/",
		"run --out /etc":         "",
		"run --fault here --de":  "--depth",
		"completion ba":          "bash",
		"run --nothing --depth=": "",
	} {
		p := workbench(nil)
		for _, c := range p.Root.Commands() {
			Values(c, map[string][]string{"out": {"here", "hear", "there/"}, "not-its-own": {"x"}})
		}
		code, stdout, _ := execute(t.Context(), p, append([]string{"__complete"}, strings.Split(typed, " ")...)...)
		var got []string
		for line := range strings.Lines(stdout) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
				got = append(got, word)
			}
		}
		sep := ","
		if strings.Contains(want, ";") {
			sep = ";"
		}
		if code != 0 || strings.Join(got, sep) != want {
			t.Errorf("%q: exit %d, %q, want %q", typed, code, got, want)
		}
	}
}
