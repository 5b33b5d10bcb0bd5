package engines

import (
	"strings"
	"testing"

	"kvferry/bench/document"
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

// TestPlots: a row that is sooner than mono is in the plot, below 0; what is not known is in none.
func TestPlots(t *testing.T) {
	row := func(setting string, length int, ttft, kv float64) Row {
		return Row{Setting: setting, Rail: tcp, PromptTokens: length, Prompts: 1, Metrics: Metrics{TTFT: ttft, KV: kv, CPU: 1}}
	}
	r := Result{Rows: []Row{
		row(Mono, 512, 20, 0), row(Mono, 2048, 100, 0),
		row("kvferry-pull", 512, 30, 0.5), row("kvferry-pull", 2048, 110, 0.9),
		row("kvferry-layerwise", 512, 26, 0), row("kvferry-layerwise", 2048, 90, 0),
	}}
	all := r.document().Sections[0].Plots
	for i, want := range []struct {
		title    string
		min, max float64 // of what is drawn
		curves   string
	}{
		{"Median TTFT (ms)", 0, 110, "mono kvferry-pull kvferry-layerwise"},
		{"TTFT over mono (ms)", -10, 10, "kvferry-pull kvferry-layerwise"},
		{"KV (GB/s)", 0, 0.9, "kvferry-pull"},
		{"CPU seconds a prompt", 0, 1, "mono kvferry-pull kvferry-layerwise"},
	} {
		p := all[i].(document.Chart)
		from, to, _ := p.Ends()
		if p.Title != want.title || from.Y > want.min || want.min < 0 != (from.Y < 0) || to.Y < want.max {
			t.Errorf("%q, from %g to %g; want %+v", p.Title, from.Y, to.Y, want)
		}
		svg, err := document.SVG(p)
		if err != nil {
			t.Fatal(err)
		}
		var curves []string
		for _, name := range []string{Mono, "kvferry-pull", "kvferry-layerwise"} {
			if strings.Contains(string(svg), ">"+(&Setting{Name: name, Rail: tcp}).String()+"<") {
				curves = append(curves, name)
			}
		}
		if got := strings.Join(curves, " "); got != want.curves {
			t.Errorf("%s: curves %s, want %s", want.title, got, want.curves)
		}
	}
}
