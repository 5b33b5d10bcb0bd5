package nics

import (
	"fmt"
	"strconv"
	"strings"

	"kvferry/bench/document"
)

// document returns the report. Its last line is the efficiency of each experiment.
func (r *Result) document() *document.Document {
	r.settle()
	d := r.report("kvferry lab nics", "nics.json", r, r.transfers(), r.faults(), r.verdicts())
	d.Verdict = r.last()
	return d
}

// transfers is the table of rates.
func (r *Result) transfers() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("transfer; medians of %d, ideal is 1448/1514 of the links' rates, CPU of both ends", r.Rounds), Left: 3,
		Head: []string{"links Gbit/s", "select", "load", "NICs", "GB/s", "low..high", "% of ideal", "CPU-s/GB", "% by NIC"},
	}
	for i := range r.Rows {
		row := &r.Rows[i]
		by := percents(row.Shares)
		if row.Select == multipath {
			by = "kernel"
		}
		t.Add(
			row.Links, row.Select, row.Load, strconv.Itoa(row.NICs), fmt.Sprintf("%.4f", row.GBps), fmt.Sprintf("%.4f..%.4f", row.Low, row.High),
			fmt.Sprintf("%.1f", row.Percent), fmt.Sprintf("%.3f", row.CPUPerGB), by,
		)
	}
	return t
}

// percents is 25.0/75.0 of shares.
func percents(shares []float64) string {
	var all []string
	for _, v := range shares {
		all = append(all, fmt.Sprintf("%.1f", 100*v))
	}
	return strings.Join(all, "/")
}

// faults is the table of the failover run.
func (r *Result) faults() document.Table {
	t := document.Table{
		Title: fmt.Sprintf("failover on 4 x 2 Gbit/s; medians of %d, in ms since the fault; worst 0.1 s in the second after it, of ideal", r.Rounds), Left: 1,
		Head: []string{"what", "detect", "recovered", "gap", "worst 0.1 s", "resent MB", "then GB/s", "% of ideal"},
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		t.Add(
			s.What, figure(s.DetectMS, 0), figure(s.RecoverMS, 0), figure(s.GapMS, 0), fmt.Sprintf("%.1f %%", s.Worst), fmt.Sprintf("%.2f", s.ResentMB), fmt.Sprintf("%.3f", s.AfterGBps), fmt.Sprintf("%.1f", s.Percent),
		)
	}
	return t
}

// figure formats a number; it returns nothing for never.
func figure(v float64, digits int) string {
	if v >= never {
		return ""
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// verdicts is the table of limits.
func (r *Result) verdicts() document.Table {
	t := document.Table{Title: "limits", Left: 1, Head: []string{"figure", "measured", "must be", ""}}
	for _, f := range r.Limits {
		t.Add(f.Case, f.measured(2)[0], f.must()+" "+f.Unit, f.Verdict)
	}
	return t
}

// last is the line with the efficiency of each experiment.
func (r *Result) last() string {
	var parts []string
	before := Key{}
	for i := range r.Rows {
		row := &r.Rows[i]
		k := row.Key
		k.NICs, k.Select = 0, ""
		text := fmt.Sprintf("%d %s %.1f", row.NICs, row.Select, row.Percent)
		if k != before {
			before, text = k, fmt.Sprintf("%s Gbit, %s: %s", row.Links, row.Load, text)
		}
		parts = append(parts, text)
	}
	for i := range r.Steps {
		parts = append(parts, fmt.Sprintf("%s %.1f", r.Steps[i].What, r.Steps[i].Percent))
	}
	return "efficiency in %: " + strings.Join(parts, ", ")
}
