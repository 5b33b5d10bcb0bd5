package rails

import (
	"strings"
	"testing"
)

// TestKinds: a kind's line in the table is complete, what it says of its specs is how
// Parse reads them, and errors and helps name every kind.
func TestKinds(t *testing.T) {
	seen := make(map[string]bool)
	for i := range kinds {
		k := &kinds[i]
		if k.name == "" || seen[k.name] || k.what == "" || len(k.forms) == 0 || len(k.flag) == 0 || len(k.help) == 0 || k.open == nil || k.alone != (k.nics == "") {
			t.Errorf("%+v is not complete, or not the only one of its name", k)
		}
		seen[k.name] = true
		var specs []string
		for _, form := range k.forms {
			specs = append(specs, strings.ReplaceAll(form, "host:port", "10.0.0.1:9101"))
		}
		for _, row := range k.help {
			specs = append(specs, strings.Split(row[0], ", ")...)
		}
		for _, f := range k.flag {
			form, _, _ := strings.Cut(f, " ")
			specs = append(specs, strings.ReplaceAll(form, "host:port", "10.0.0.1:9101"))
		}
		for _, text := range specs {
			if s, err := Parse(text); err != nil || s.Kind != k.name {
				t.Errorf("%s says %q: %+v, %v", k.name, text, s, err)
			}
		}
		for name, text := range map[string]string{"Forms": Forms(), "Flag": Flag(), "Help": Help(), "whats": whats()} {
			if !strings.Contains(text, k.name) {
				t.Errorf("%s leaves out %s: %s", name, k.name, text)
			}
		}
	}
	const forms = "host:port, tcp/eth0, tcp/eth0@host:port, rdma/mlx5_0, rdma/mlx5_0:1@host:port, each with ?option=value, or cma"
	if got := Forms(); !strings.HasPrefix(got, forms) {
		t.Errorf("forms: %s", got)
	}
	for line := range strings.Lines(Help([2]string{"mem", strings.Repeat("word ", 40)})) {
		if len(line) > 84 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
}
