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

// percentile is a figure of n samples as a table shows it: nothing beyond it makes it no percentile,
// and a few an uncertain one.
func percentile(us, p float64, n int64) string {
	switch beyond := stats.Beyond(n, p); {
	case beyond < 1:
		return ""
	case beyond < stats.Few:
		return fmt.Sprintf("%.1f~", us)
	}
	return fmt.Sprintf("%.1f", us)
}

// legend says what the table's marks are, and what of rows are that are no transfers.
func (r *Result) legend() (notes document.Notes) {
	if slices.ContainsFunc(r.table().Rows, func(row []string) bool {
		return slices.ContainsFunc(row, func(cell string) bool { return strings.HasSuffix(cell, "~") })
	}) {
		notes.Addf(document.Info, "~: fewer than %d samples lie beyond this percentile; -: none does, or it is not measured (--duration)", stats.Few)
	}
	notes.Add(document.Info, r.beside()...)
	return notes
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
			p.Op + p.star(), config.FormatSize(p.Block), r.subject(p), whole(n),
			fmt.Sprintf("%.1f", l.MinUS), percentile(l.P50US, 50, n), percentile(l.P99US, 99, n), percentile(l.P999US, 99.9, n), fmt.Sprintf("%.1f", l.MaxUS),
			three(p.GBps),
		}
		row = append(row, p.found()...)
		if several {
			row = append(row, p.shared()...)
		}
		t.Add(r.withKV(row, p.Block)...)
		if i+1 < len(r.Points) && r.Points[i+1].Op == p.Op && r.Points[i+1].Block == p.Block {
			continue
		}
		for _, o := range r.References {
			if o.Op != p.Op || o.Block != p.Block || o.Error != "" {
				continue
			}
			samples := ""
			if o.Samples > 0 {
				samples = whole(o.Samples)
			}
			rank := func(us Rank, p float64) string {
				return document.Known(us, func(v float64) string { return percentile(v, p, o.Samples) })
			}
			row := []string{o.Op, config.FormatSize(o.Block), o.Name, samples, "", rank(o.P50US, 50), rank(o.P99US, 99), rank(o.P999US, 99.9), "", three(o.GBps), "", "", "", ""}
			if several {
				row = append(row, "1", "", "")
			}
			t.Add(r.withKV(row, o.Block)...)
		}
	}
	return t
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
		return []string{strconv.Itoa(p.Peers), "", ""}
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
		if line := fmt.Sprintf("%s %s is %s", o.Op, o.Name, o.Of); o.Of != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	seen := map[string]bool{}
	for _, size := range r.Settings.KV {
		if !seen[size.Model] {
			seen[size.Model] = true
			lines = append(lines, fmt.Sprintf("KV sizes of %s follow from %s", size.Model, size.Source))
		}
	}
	return lines
}

// csv is a line of WriteCSV; what was not measured is empty.
func (o *Reference) csv(f func(float64) string) []string {
	return []string{
		o.Op, strconv.FormatInt(o.Block, 10), "1", "1", "1", "", "", "", strconv.FormatInt(o.Samples, 10), "", f(o.GBps), "", "", "",
		"", "", document.Known(o.P50US, f), document.Known(o.P99US, f), document.Known(o.P999US, f), "", "", "", "", "", "", "", "", o.Name, "false", "1", "", "",
	}
}
