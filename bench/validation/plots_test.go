package validation

import (
	"strings"
	"testing"

	"kvferry/bench/document"
)

// drawn is a plot as a page has it.
func drawn(t *testing.T, p document.Plot) string {
	t.Helper()
	svg, err := document.SVG(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(svg)
}

// TestPlots: each source has its errors and their distribution, in sample and held back told apart and
// looking the same in all plots; what is no latency is in the distribution alone.
func TestPlots(t *testing.T) {
	t.Parallel()
	record := func(source string, sample Sample, profile, figure string, published, relErr float64) Record {
		return Record{Source: source, Sample: sample, Profile: profile, Figure: figure, Published: published, RelErr: relErr}
	}
	r := Results{records: []Record{
		record("a", InSample, "fitted", "mean_ttft_ms", 100, 0.01),
		record("a", OtherRun, "fitted-at-32", "mean_ttft_ms", 10, -0.30),
		record("b", Datasheet, "from-gpu", "median_itl_ms", 20, 0.40),
		record("a", InSample, "fitted", "request_throughput", 0.5, 0.90),
	}}
	all := r.plots()
	if len(all) != 4 {
		t.Fatalf("%d plots", len(all))
	}
	names := []string{"in sample", "held back", "from-gpu, held back"}
	for i, want := range []struct {
		title       string
		names       string // that are in the legend
		low, high   float64
		least, most float64 // of the axis below
		bands       bool
	}{
		{title: "a: error (%)", names: "in sample, held back", low: -30, high: 30, least: 10, most: 100, bands: true},
		{title: "a: share by error", names: "in sample, held back", high: 1, least: 1, most: 90},
		{title: "b: error (%)", names: "from-gpu, held back", low: -40, high: 40, least: 20, most: 20, bands: true},
		{title: "b: share by error", names: "from-gpu, held back", high: 1, least: 40, most: 40},
	} {
		p := all[i].(document.Chart)
		from, to, _ := p.Ends()
		if p.Title != want.title || from.Y > want.low || to.Y < want.high || from.X > want.least || to.X < want.most || want.bands && from.X < want.least/2 {
			t.Errorf("%q: from %v to %v; want %+v", p.Title, from, to, want)
		}
		svg := drawn(t, p)
		var got []string
		for _, name := range names {
			if strings.Contains(svg, ">"+name+"<") {
				got = append(got, name)
			}
		}
		if strings.Join(got, ", ") != want.names {
			t.Errorf("%s: %q in the legend, want %s", want.title, got, want.names)
		}
		if strings.Contains(svg, ">±10 %<") != want.bands || strings.Contains(svg, ">±20 %<") != want.bands {
			t.Errorf("%s: its bands are not %v", want.title, want.bands)
		}
	}
	// The colour of held back is that of the second curve, whether there is a first or not.
	groups := r.groups("b")
	if len(groups) != 3 || groups[0].name != string(InSample) || len(groups[0].records) > 0 || groups[2].name != names[2] {
		t.Errorf("%+v", groups)
	}
}
