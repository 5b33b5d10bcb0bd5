package bench

import (
	"bytes"
	"regexp"
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
		if err := r.document().WriteHTML(&b); err != nil {
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
