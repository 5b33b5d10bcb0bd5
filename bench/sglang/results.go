package sglang

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/engine"
)

// Results are all rows of a command. They are summary.json.
type Results struct {
	Rows    []Row           `json:"rows"`
	Command []string        `json:"command"`
	Started time.Time       `json:"started"`
	Machine observe.Machine `json:"machine"`

	cut     string          // of a run that was begun and is not complete; empty: there is none
	instead *engine.Profile // of Config.Profile; nil: each run has its own
}

// ErrFaults is what Run's error unwraps to when all runs were gone through but some have faults.
var ErrFaults = errors.New("runs with faults")

// finish writes and prints what there is, and adds to err what kept it from that.
func (r *Results) finish(cfg Config, out *document.Folder, err error) error {
	if len(r.Rows) > 0 || r.cut != "" {
		err = errors.Join(err, out.End(r.document(), cfg.Stdout))
	} else {
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return err
	}
	for i := range r.Rows {
		for _, f := range r.Rows[i].Faults {
			err = errors.Join(err, fmt.Errorf("%w: %s: %s", ErrFaults, r.Rows[i].timed(), f))
		}
	}
	return err
}

// groups are the rows by workload and clock.
func (r *Results) groups() [][]Row {
	var groups [][]Row
	for i, row := range r.Rows {
		if i == 0 || row.Workload != r.Rows[i-1].Workload || row.Clock != r.Rows[i-1].Clock {
			groups = append(groups, nil)
		}
		last := &groups[len(groups)-1]
		*last = append(*last, row)
	}
	return groups
}

// tables are one a workload and clock, with a line a figure, one that sets the clocks side by side, and one
// that says what was asked.
func (r *Results) tables() []document.Table {
	var tables []document.Table
	for _, rows := range r.groups() {
		t := document.Table{Title: rows[0].Workload + " in " + rows[0].Clock + " time", Left: 1, Head: []string{"figure"}}
		for _, row := range rows {
			t.Head = append(t.Head, row.Setting+row.Disturbance.Mark(), "published", "error")
		}
		for _, key := range Keys() {
			line, any := []string{key}, false
			for _, row := range rows {
				published, there := row.Said[key]
				if !there {
					line = append(line, "", "", "")
					continue
				}
				any = true
				off := ""
				if e, there := row.RelErr[key]; there {
					off = percent(e)
				}
				line = append(line, number(row.Metrics[key]), number(published), off)
			}
			if any {
				t.Add(line...)
			}
		}
		tables = append(tables, t)
	}
	what := document.Table{Title: "what was asked", Left: 4, Head: []string{"run", "setting", "clock", "profile", "requests", "prompt tokens", "generated", "within 10 %", "errors are"}}
	for _, row := range r.Rows {
		what.Add(
			row.Workload, row.Setting, row.Clock, row.Profile, fmt.Sprint(row.Counts.Successful), fmt.Sprint(row.Counts.Input), fmt.Sprint(row.Counts.Generated),
			fmt.Sprintf("%d of %d", row.Within, row.Judged), map[bool]string{true: "in sample", false: "held back"}[row.InSample],
		)
	}
	return append(tables, r.beside(), what)
}

// beside is how far real time is from virtual time, of the runs that were run by both clocks.
func (r *Results) beside() document.Table {
	t := document.Table{Title: "real time beside virtual time", Left: 1, Head: []string{"figure"}}
	lines := map[string][]string{}
	for i := range r.Rows {
		real := &r.Rows[i]
		v := slices.IndexFunc(r.Rows, func(o Row) bool { return o.name() == real.name() && o.Clock == report.ClockVirtual })
		if real.Clock != report.ClockReal || v < 0 {
			continue
		}
		t.Head = append(t.Head, real.name()+real.Disturbance.Mark())
		for _, key := range Keys() {
			cell, computed := "", r.Rows[v].Metrics[key]
			if _, there := real.Said[key]; there && computed != 0 {
				cell = percent(real.Metrics[key]/computed - 1)
			}
			lines[key] = append(lines[key], cell)
		}
	}
	for _, key := range Keys() {
		if slices.ContainsFunc(lines[key], func(cell string) bool { return cell != "" }) {
			t.Add(append([]string{key}, lines[key]...)...)
		}
	}
	return t
}

// percent is a share with its sign; what is rounded to nothing has none of its own.
func percent(share float64) string { return fmt.Sprintf("%+.1f%%", math.Round(1000*share)/10+0) }

func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// remarks are faults, where the records were published and what they themselves get wrong. What
// several runs of a workload have in common is said once.
func (r *Results) remarks() (notes document.Notes) {
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, f := range row.Faults {
			notes.Add(document.Fault, row.timed()+": "+f)
		}
		if row.Disturbance.Disturbed() {
			notes.Add(document.Doubt, row.timed()+": the machine did other things too: "+row.Disturbance.String())
		}
	}
	var said []string
	add := func(line string) {
		if !slices.Contains(said, line) {
			said = append(said, line)
		}
	}
	for _, row := range r.Rows {
		add(row.Workload + ": published: " + row.Source.String())
		for _, remark := range row.Remarks {
			if r.common(row.Workload, remark) {
				add(row.Workload + ": " + remark)
			} else {
				add(row.name() + ": " + remark)
			}
		}
	}
	if r.cut != "" {
		notes.Add(document.Fault, r.cut)
	}
	notes.Add(document.Info, said...)
	return notes
}

// common reports whether several runs of the workload have that remark.
func (r *Results) common(workload, remark string) bool {
	first := ""
	return slices.ContainsFunc(r.Rows, func(o Row) bool {
		if o.Workload != workload || !slices.Contains(o.Remarks, remark) {
			return false
		}
		several := first != "" && first != o.Setting
		first = o.Setting
		return several
	})
}

// what says what was done, by the clocks that there are.
func (r *Results) what() string {
	var clocks []string
	for _, c := range []struct{ clock, what string }{
		{report.ClockVirtual, "virtual time: compute modelled, no KV transfer"},
		{report.ClockReal, "real time: modelled servers on this machine, asked over HTTP, compute modelled, no KV transfer"},
	} {
		if slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Clock == c.clock }) {
			clocks = append(clocks, c.what)
		}
	}
	fitted := "the shipped profiles were fitted to these records"
	if r.instead != nil {
		fitted = fmt.Sprintf("%s (of %s) in place of each run's own, and fitted to none of these records", r.instead.Name, r.instead.Model)
	}
	return strings.Join(append(clocks, fitted), "; ")
}

// document returns the report of the results.
func (r *Results) document() *document.Document {
	return &document.Document{
		Title: "SGLang's published runs", Made: document.When("Computed", r.Started), Head: []string{r.what()}, Notes: r.remarks(), Data: r,
		Sections: []document.Section{{Tables: r.tables()}},
	}
}
