package bench

import (
	"kvferry/bench/document"
	"kvferry/bench/observe"
)

// document returns the report of the results.
func (r *Results) document() *document.Document {
	d := &document.Document{
		Title: "kvferry reproduce mooncake", Head: append([]string{r.when()}, r.conditions()...), HeadInFiles: true, Verdict: r.Verdict(), Notes: r.remarks(), Data: r.Summary(),
		Brief: struct {
			Config  RunConfig       `json:"config"`
			Machine observe.Machine `json:"machine"`
		}{r.Config, r.Machine},
	}
	for _, g := range r.groups() {
		itl := g.compare(latencies[2])
		itl.Detail = true
		d.Sections = append(d.Sections, document.Section{
			Name: g.name, Plots: g.plots(),
			Tables: []document.Table{g.compare(latencies[0]), g.compare(latencies[1]), itl, g.what(), g.quiet()},
		})
	}
	d.Sections = append(d.Sections, document.Section{Tables: r.agreement()})
	return d
}
