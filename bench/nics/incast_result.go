package nics

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/incast"
	"kvferry/bench/observe"
	"kvferry/internal/config"
)

// An IncastResult is all rounds of the cases.
type IncastResult struct {
	Started     time.Time       `json:"started"`
	Seconds     float64         `json:"seconds"`
	Machine     observe.Machine `json:"machine"`
	Rounds      int             `json:"rounds"`
	Initiators  int             `json:"initiators"`
	Rate        int64           `json:"bits_per_s"`
	SwitchQueue int             `json:"switch_queue_bytes"`
	Cases       []string        `json:"cases"`
	Points      []IncastPoint   `json:"points"`
	Rows        []IncastRow     `json:"rows"`
}

// An IncastPoint is a case in one round.
type IncastPoint struct {
	Case    string  `json:"case"`
	Round   int     `json:"round"`
	GBps    float64 `json:"gb_per_s"`
	Percent float64 `json:"percent_of_ideal"`
	*incast.Sample
	Notice Notice `json:"machine"`
}

// An IncastRow is a figure of a case: the median over the rounds that were not disturbed.
type IncastRow struct {
	WANRow
	Figure string `json:"figure"`
}

// incastFigures are what a case comes to, and what it must.
var incastFigures = []struct {
	name, unit  string
	digits      int
	least, most func(*incastCase) float64 // nil and 0: no limit
	of          func(*IncastPoint) float64
}{
	{name: "rate", unit: ofIdeal, digits: 1, least: func(*incastCase) float64 { return 97 }, of: func(p *IncastPoint) float64 { return p.Percent }},
	{name: "least/most", digits: 2, least: func(c *incastCase) float64 { return c.share }, of: func(p *IncastPoint) float64 { return p.MinMax }},
	{name: "Jain's index", digits: 3, of: func(p *IncastPoint) float64 { return p.Jain }},
	{name: "probe p50", unit: inMS, digits: 1, of: func(p *IncastPoint) float64 { return p.P50MS }},
	{name: "probe p99", unit: inMS, digits: 1, most: func(c *incastCase) float64 { return c.wait }, of: func(p *IncastPoint) float64 { return p.P99MS }},
}

// settle makes the rows of what there is.
func (r *IncastResult) settle() {
	r.Rows = nil
	for c := range incastCases {
		c := &incastCases[c]
		for i := range incastFigures {
			if !slices.Contains(r.Cases, c.name) {
				break
			}
			f := &incastFigures[i]
			var u undisturbed
			for k := range r.Points {
				if p := &r.Points[k]; p.Case == c.name {
					u.add(p.Round, &p.Notice, f.of(p))
				}
			}
			row := IncastRow{Figure: f.name, WANRow: WANRow{Case: c.name, What: c.what, Unit: f.unit}}
			if f.least != nil {
				row.Least = f.least(c)
			}
			if f.most != nil {
				row.Most = f.most(c)
			}
			u.fill(&row.WANRow)
			row.judge(row.Least+row.Most > 0, row.Value >= row.Least && (row.Most == 0 || row.Value <= row.Most))
			r.Rows = append(r.Rows, row)
		}
	}
}

// missed is an error if a limit was, or if a figure is not known.
func (r *IncastResult) missed() error {
	var all []string
	for i := range r.Rows {
		all = append(all, r.Rows[i].Verdict)
	}
	return judged(all)
}

// document returns the report of the result.
func (r *IncastResult) document() *document.Document {
	r.settle()
	return &document.Document{
		Title: "kvferry lab nics incast", Made: document.When("Measured", r.Started), Head: labHead(r.Machine, r.Seconds), Data: r, DataName: "incast.json",
		Sections: []document.Section{{Tables: []document.Table{r.table()}}},
	}
}

// table has a line for each case and figure.
func (r *IncastResult) table() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("%d initiators and one target, whose NIC carries %s; behind a switch its port's queue holds %s; 4 KiB now and then is the probe;\nmedians of %d", r.Initiators, fmt.Sprintf("%g Mbit/s", float64(r.Rate)/1e6), config.FormatSize(int64(r.SwitchQueue)), r.Rounds),
		Left:  3, Head: []string{"case", "they meet", "figure", kvferry, "low..high", "must be", "CPUs idle %", ""},
	}
	for i := range r.Rows {
		row, f := &r.Rows[i], &incastFigures[i%len(incastFigures)]
		cells := append([]string{row.Case, row.What, strings.TrimSpace(row.Figure + " " + row.Unit)}, row.measured(f.digits)...)
		cells = append(cells, row.must())
		t.Add(append(cells, row.ending()...)...)
	}
	return t
}

// must is the limit of a row in words.
func (row *IncastRow) must() string {
	switch {
	case row.Least > 0:
		return fmt.Sprintf("at least %g", row.Least)
	case row.Most > 0:
		return fmt.Sprintf("at most %g", row.Most)
	}
	return ""
}
