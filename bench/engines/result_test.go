package engines

import (
	"strings"
	"testing"
)

// TestCompare: over a link layerwise has to be sooner than pull, where pull's wire takes a fifth of P's time.
func TestCompare(t *testing.T) {
	for name, c := range map[string]struct {
		link                int64
		wire, pull, layered float64
		want                string
	}{
		"sooner":          {link: 1e9, wire: 50e3, pull: 200, layered: 150},
		"later":           {link: 1e9, wire: 50e3, pull: 200, layered: 210, want: "no sooner than with kvferry-pull, 200.0 ms, whose wire is 50 % of P's time"},
		"little to hide":  {link: 1e9, wire: 19e3, pull: 200, layered: 210},
		"without a link":  {wire: 50e3, pull: 200, layered: 210},
		"as soon is late": {link: 1e9, wire: 20e3, pull: 200, layered: 200, want: "no sooner"},
	} {
		sample := func(setting string, ttft float64) Sample {
			return Sample{
				Setting: setting, Rail: tcp, PromptTokens: 2048, TTFT: ttft, Prefill: 100, KVBytes: 1, Identical: true, LikeOthers: true, DigestsEqual: true,
				Parts: &Parts{Wire: c.wire},
			}
		}
		r := Result{Link: c.link, Judged: true, Samples: []Sample{sample("kvferry-pull", c.pull), sample("kvferry-layerwise", c.layered)}}
		r.settle([]Setting{kvferry(pull, tcp), kvferry(layerwise, tcp)})
		if len(r.Rows) != 2 || r.Rows[0].Error != "" || !strings.Contains(r.Rows[1].Error, c.want) || c.want == "" && r.Rows[1].Error != "" {
			t.Errorf("%s: %+v", name, r.Rows)
		}
	}
}
