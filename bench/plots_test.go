package bench

import (
	"bytes"
	"context"
	"math"
	"regexp"
	"strings"
	"testing"
)

var svgText = regexp.MustCompile(`<text[^>]*>([^<]*)</text>`)

// texts are those of a page's plots.
func texts(page string) map[string]int {
	count := map[string]int{}
	for _, m := range svgText.FindAllStringSubmatch(page, -1) {
		count[m[1]]++
	}
	return count
}

// TestLegendsHaveData: what no cell has is in no legend.
func TestLegendsHaveData(t *testing.T) {
	render := func(r *Results) map[string]int {
		t.Helper()
		var b bytes.Buffer
		if err := WriteHTML(&b, r); err != nil {
			t.Fatal(err)
		}
		return texts(b.String())
	}
	r := publishedRun()
	if got := render(r); got["measured"] != 4 || got["published"] != 4 || got["wire"] != 1 || got["land"] != 0 {
		t.Errorf("plots say %v", got)
	}
	if got := render(r); got["chunked ~"] != 6 || got["rdma2 *"] != 6 {
		t.Errorf("marks of the tables are not in the plots: %v", got)
	}
	r.Cells = r.Cells[5:] // layerwise, which nobody published
	if got := render(r); got["measured"] != 4 || got["published"] != 0 {
		t.Errorf("nothing is comparable, and the plots say %v", got)
	}
	r.Cells[0].Metrics = nil
	if got := render(r); got["measured"] != 0 || got["queue"] != 0 || got["layerwise"] == 0 {
		t.Errorf("nothing was measured, and the plots say %v", got)
	}
}

// TestSweepPlots: equal curves are named, ticks are whole, and values that crowd an
// axis stand side by side.
func TestSweepPlots(t *testing.T) {
	w := sweep(t, "rate=1,2,30000", "link=1GB/s,100GB/s")
	w.Base.Random.Requests, w.Base.Random.OutputLen = 100, 200
	r, err := w.Run(context.Background(), func(int) {}, func(*SimulationResult, *SweepResult) {})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	got := texts(b.String())
	if got["link=1GB/s"] != 8 || got["link=100GB/s (as 1GB/s)"] < 4 || got["link=100GB/s"] < 1 {
		t.Errorf("legends: %v", got)
	}
	for text := range got {
		if strings.HasSuffix(text, ".00") {
			t.Errorf("a tick says %q", text)
		}
	}
	at, ticks := r.axis()
	if at["1"] != 0 || at["2"] != 1 || at["30000"] != 2 || len(ticks) != 3 || ticks[2].Label != "30000" {
		t.Errorf("axis %v, %v", at, ticks)
	}
	r.Params[0].Values = []string{"4", "1", "2"}
	if at, _ := r.axis(); at["4"] != 4 || at["1"] != 1 {
		t.Errorf("numbers with room stand at %v", at)
	}
	p, err := r.curves("nothing", func(*SimulationResult) float64 { return math.NaN() })
	if err != nil || p.Y.Max != 1 {
		t.Errorf("a figure that no point has: up to %v, %v", p.Y.Max, err)
	}
}
