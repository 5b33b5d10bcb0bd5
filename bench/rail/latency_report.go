package rail

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
	"kvferry/bench/stats"
	"kvferry/internal/config"
)

// percentile is a figure of n samples as a table shows it: none beyond it makes it no percentile,
// and a few an uncertain one.
func percentile(us, p float64, n int64) string {
	switch beyond := stats.Beyond(n, p); {
	case beyond < 1:
		return "-"
	case beyond < stats.Few:
		return fmt.Sprintf("%.1f~", us)
	}
	return fmt.Sprintf("%.1f", us)
}

// legend says what the table's marks are, and what of rows are that are no transfers.
func (r *Result) legend() (lines []string) {
	if slices.ContainsFunc(r.table().Rows, func(row []string) bool {
		return slices.ContainsFunc(row, func(cell string) bool { return strings.HasSuffix(cell, "~") })
	}) {
		lines = append(lines, fmt.Sprintf("  ~: fewer than %d samples lie beyond this percentile; -: none does, or it is not measured (--duration)", stats.Few))
	}
	return append(lines, r.beside()...)
}

// latencyTable has a row a point, and below it those of what was measured beside it.
func (r *Result) latencyTable() document.Table {
	t := document.Table{Title: "measured, one batch at a time, in µs: from the call of Submit until its caller knows that the bytes are at the destination", Left: 1}
	t.Head = []string{"op", "block", "of", "samples", "min", "p50", "p99", "p99.9", "max", "GB/s", "CPU-s/GB", "errors", "checked", "bad"}
	several := r.head(&t)
	for i := range r.Points {
		p := &r.Points[i]
		l, n := &p.Latency, p.Batches
		row := []string{
			p.Op, config.FormatSize(p.Block), r.subject(p), strconv.FormatInt(n, 10),
			fmt.Sprintf("%.1f", l.MinUS), percentile(l.P50US, 50, n), percentile(l.P99US, 99, n), percentile(l.P999US, 99.9, n), fmt.Sprintf("%.1f", l.MaxUS),
			three(p.GBps), "-", strconv.Itoa(p.Errors), "-", "-",
		}
		p.found(row, row[10:14])
		if several {
			row = append(row, p.shared()...)
		}
		t.Rows = append(t.Rows, r.withKV(row, p.Block))
		if i+1 < len(r.Points) && r.Points[i+1].Op == p.Op && r.Points[i+1].Block == p.Block {
			continue
		}
		for _, o := range r.References {
			if o.Op != p.Op || o.Block != p.Block || o.Error != "" {
				continue
			}
			row := []string{o.Op, config.FormatSize(o.Block), o.Name, strconv.FormatInt(o.Samples, 10), "-", rank(o.P50US, 50, o.Samples), rank(o.P99US, 99, o.Samples), rank(o.P999US, 99.9, o.Samples), "-", three(o.GBps), "-", "-", "-", "-"}
			if o.Samples == 0 {
				row[3] = "-"
			}
			if several {
				row = append(row, "1", "-", "-")
			}
			t.Rows = append(t.Rows, r.withKV(row, o.Block))
		}
	}
	return t
}

func rank(us Rank, p float64, n int64) string {
	if us == nil {
		return "-"
	}
	return percentile(*us, p, n)
}

// subject is what a point is of: all of it that the run varies besides op and block.
func (r *Result) subject(p *Point) string {
	parts := []string{"kvferry"}
	vary := func(of func(*Point) any, text string) {
		if slices.ContainsFunc(r.Points, func(q Point) bool { return of(&q) != of(p) }) {
			parts = append(parts, text)
		}
	}
	vary(func(q *Point) any { return q.Batch }, fmt.Sprintf("x %d", p.Batch))
	vary(func(q *Point) any { return q.Threads }, fmt.Sprintf("threads %d", p.Threads))
	vary(func(q *Point) any { return q.Count }, fmt.Sprintf("rails %d", p.Count))
	vary(func(q *Point) any { return q.Select }, p.Select)
	if p.Imm {
		parts = append(parts, "+ immediate")
	}
	return strings.Join(parts, " ")
}

// shared are the columns of several initiators.
func (p *Point) shared() []string {
	if p.Fairness == nil {
		return []string{strconv.Itoa(p.Peers), "-", "-"}
	}
	return []string{strconv.Itoa(p.Peers), fmt.Sprintf("%.3f", p.Fairness.MinMax), fmt.Sprintf("%.3f", p.Fairness.Jain)}
}

// withKV ends a row with what of a model's KV has this size.
func (r *Result) withKV(row []string, block int64) []string {
	if len(r.Settings.KV) == 0 {
		return row
	}
	var of []string
	for _, size := range r.Settings.KV {
		if size.Bytes == block {
			of = append(of, size.Model+": "+size.What)
		}
	}
	return append(row, strings.Join(of, "; "))
}

// beside says of what the rows are that are no transfers.
func (r *Result) beside() (lines []string) {
	for _, o := range r.References {
		if line := fmt.Sprintf("  %s %s is %s", o.Op, o.Name, o.Of); o.Of != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	seen := map[string]bool{}
	for _, size := range r.Settings.KV {
		if !seen[size.Model] {
			seen[size.Model] = true
			lines = append(lines, fmt.Sprintf("  KV sizes of %s follow from %s", size.Model, size.Source))
		}
	}
	return lines
}

// csv is a line of WriteCSV; what was not measured is empty.
func (o *Reference) csv(f func(float64) string) []string {
	return []string{
		o.Op, strconv.FormatInt(o.Block, 10), "1", "1", "1", "", "", "", strconv.FormatInt(o.Samples, 10), "", f(o.GBps), "", "", "",
		"", "", known(o.P50US, f), known(o.P99US, f), known(o.P999US, f), "", "", "", "", "", "", "", "", o.Name, "false", "1", "", "",
	}
}
