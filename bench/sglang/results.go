package sglang

import (
	"errors"
	"fmt"
	"time"

	"kvferry/bench/machine"
	"kvferry/bench/page"
)

// Results are all rows of a command. They are summary.json.
type Results struct {
	Rows    []Row           `json:"rows"`
	Command []string        `json:"command"`
	Started time.Time       `json:"started"`
	Machine machine.Machine `json:"machine"`
}

// ErrFaults is what Run's error unwraps to when all runs were gone through but some have faults.
var ErrFaults = errors.New("runs with faults")

// finish writes and prints what there is, and adds to err what kept it from that.
func (r *Results) finish(cfg Config, out *page.Folder, err error) error {
	d := r.document()
	if len(r.Rows) > 0 {
		out.Save(d.Files()...)
	}
	kept := out.Close()
	if len(r.Rows) > 0 {
		dir := cfg.Out
		if kept != nil {
			dir = ""
		}
		err = errors.Join(err, d.Print(cfg.Stdout, dir))
	}
	if err = errors.Join(err, kept); err != nil {
		return err
	}
	for i := range r.Rows {
		for _, f := range r.Rows[i].Faults {
			err = errors.Join(err, fmt.Errorf("%w: %s: %s", ErrFaults, r.Rows[i].name(), f))
		}
	}
	return err
}

// groups are the rows by workload.
func (r *Results) groups() [][]Row {
	var groups [][]Row
	for i, row := range r.Rows {
		if i == 0 || row.Workload != r.Rows[i-1].Workload {
			groups = append(groups, nil)
		}
		last := &groups[len(groups)-1]
		*last = append(*last, row)
	}
	return groups
}

// tables are one a workload, with a line a figure, and one that says what was computed.
func (r *Results) tables() []page.Table {
	var tables []page.Table
	for _, rows := range r.groups() {
		t := page.Table{Title: rows[0].Workload + " in virtual time", Left: 1, Head: []string{"figure"}}
		for _, row := range rows {
			t.Head = append(t.Head, row.Setting, "published", "error")
		}
		for _, key := range Keys() {
			line, any := []string{key}, false
			for _, row := range rows {
				published, there := row.Said[key]
				if !there {
					line = append(line, "-", "-", "-")
					continue
				}
				any = true
				cells := []string{number(row.Metrics[key]), number(published), "-"}
				if e, there := row.RelErr[key]; there {
					cells[2] = fmt.Sprintf("%+.1f%%", 100*e)
				}
				line = append(line, cells...)
			}
			if any {
				t.Rows = append(t.Rows, line)
			}
		}
		tables = append(tables, t)
	}
	what := page.Table{Title: "what was computed", Left: 3, Head: []string{"run", "setting", "profile", "requests", "prompt tokens", "generated", "within 10 %"}}
	for _, row := range r.Rows {
		what.Rows = append(what.Rows, []string{
			row.Workload, row.Setting, row.Profile, fmt.Sprint(row.Counts.Successful), fmt.Sprint(row.Counts.Input), fmt.Sprint(row.Counts.Generated),
			fmt.Sprintf("%d of %d", row.Within, row.Judged),
		})
	}
	return append(tables, what)
}

func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// remarks are faults and what the records themselves get wrong, a line each.
func (r *Results) remarks() []string {
	var lines []string
	for i := range r.Rows {
		row := &r.Rows[i]
		for _, f := range row.Faults {
			lines = append(lines, "* "+row.name()+": "+f)
		}
		for _, remark := range row.Remarks {
			lines = append(lines, row.name()+": "+remark)
		}
	}
	return lines
}

const what = "virtual time: compute modelled, no KV transfer; the shipped profiles were fitted to these records"

// document is the results as people read them.
func (r *Results) document() *page.Document {
	return &page.Document{
		Title: "SGLang's published runs", Made: "Computed", Started: r.Started, Head: what, Tables: r.tables(), Notes: r.remarks(), Data: r,
	}
}
