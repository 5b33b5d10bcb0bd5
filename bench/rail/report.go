package rail

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
	"kvferry/bench/stats"
	"kvferry/internal/config"
)

// resultsFile has all of a run in its folder.
const resultsFile = "results.json"

// keep writes the result's files and prints it in the format that was asked for.
func (r *Result) keep(cfg *Config) error {
	d, print := r.document(), r.WritePerftest
	switch cfg.Format {
	case JSON:
		print = func(w io.Writer) error { return document.WriteJSON(w, r) }
	case CSV:
		print = r.table().WriteCSV
	case Perftest:
	default:
		return d.Keep(cfg.Stdout, cfg.Out)
	}
	lost := d.Write(cfg.Out)
	return errors.Join(print(cfg.Stdout), lost)
}

// String returns what was measured in a point.
func (p *Point) String() string {
	text := fmt.Sprintf("%s %s x %d, threads %d, depth %d, rails %d, %s", p.Op, config.FormatSize(p.Block), p.Batch, p.Threads, p.Depth, p.Count, p.Select)
	if p.Peers > 1 {
		text += fmt.Sprintf(", initiators %d", p.Peers)
	}
	if p.Imm {
		text += ", with an immediate"
	}
	return text
}

// line returns a line for a log, in which p is point i of n.
func (p *Point) line(i, n int) string {
	line := fmt.Sprintf("point %d/%d %v: %.2f GB/s, p50 %.1f us, p99 %.1f us", i, n, p, p.GBps, p.Latency.P50US, p.Latency.P99US)
	if p.Errors > 0 {
		line += fmt.Sprintf(", %d batches failed", p.Errors)
	}
	if p.Bad != nil {
		line += fmt.Sprintf(", %d blocks checked, %d bad", *p.Checked, *p.Bad)
	}
	if p.Interrupted {
		line += ", interrupted"
	}
	return line
}

// A line is a row of the table: a point, or else what was measured beside it.
type line struct {
	*Point
	beside *Reference
}

// of returns the cell of a point in a table; nothing else has one.
func of(cell func(*Point) string) func(line) string {
	return func(l line) string {
		if l.Point == nil {
			return ""
		}
		return cell(l.Point)
	}
}

// either returns the cell of a line, whichever it is.
func either(cell func(*Point) string, beside func(*Reference) string) func(line) string {
	return func(l line) string {
		if l.Point == nil {
			return beside(l.beside)
		}
		return cell(l.Point)
	}
}

// ranks returns the cell of a percentile.
func ranks(p float64, us func(*Latency) float64, beside func(*Reference) Rank) func(line) string {
	return either(func(q *Point) string { return percentile(us(&q.Latency), p, q.Batches) }, func(o *Reference) string {
		return document.Known(beside(o), func(v float64) string { return percentile(v, p, o.Samples) })
	})
}

// columns are the columns of a table, by what it is of.
type columns = document.Cols[line]

// table has a row a point, and below those of an op and a size what was measured beside them.
func (r *Result) table() document.Table {
	title := "measured; ops are blocks, latency (p50 ..) and post are of a batch in µs, CPU is of both ends"
	all := columns{
		{"op", either(r.op, func(o *Reference) string { return o.Op })},
		{"block", func(l line) string { return config.FormatSize(l.block()) }},
	}
	rate := columns{{"GB/s", either(func(p *Point) string { return three(p.GBps) }, func(o *Reference) string { return three(o.GBps) })}}
	latency := columns{
		{"p50", ranks(50, func(l *Latency) float64 { return l.P50US }, func(o *Reference) Rank { return o.P50US })},
		{"p99", ranks(99, func(l *Latency) float64 { return l.P99US }, func(o *Reference) Rank { return o.P99US })},
		{"p99.9", ranks(99.9, func(l *Latency) float64 { return l.P999US }, func(o *Reference) Rank { return o.P999US })},
	}
	if r.Settings.Latency {
		title = "measured, one batch at a time, in µs: from the call of Submit until its caller knows that the bytes are at the destination"
		all = slices.Concat(all, columns{
			{"of", either(r.subject, func(o *Reference) string { return o.Name })},
			{"samples", either(func(p *Point) string { return whole(p.Batches) }, (*Reference).samples)},
			{"min", of(func(p *Point) string { return document.Fixed(p.Latency.MinUS, 1) })},
		}, latency, columns{{"max", of(func(p *Point) string { return document.Fixed(p.Latency.MaxUS, 1) })}}, rate)
	} else {
		all = slices.Concat(all, columns{
			{"batch", of(func(p *Point) string { return strconv.Itoa(p.Batch) })},
			{"threads", of(func(p *Point) string { return strconv.Itoa(p.Threads) })},
			{"depth", of(func(p *Point) string { return strconv.Itoa(p.Depth) })},
			{"rails", of(func(p *Point) string { return strconv.Itoa(p.Count) })},
			{"select", of(func(p *Point) string { return p.Select })},
		}, rate, columns{
			{"% of limit", of(func(p *Point) string { return document.Fixed(document.Number(p.LimitPct), 1) })},
			{"ops/s", of(func(p *Point) string { return document.Fixed(p.OpsPerS, 0) })},
		}, latency, columns{{"post", of(func(p *Point) string { return document.Fixed(p.PostUS, 1) })}})
	}
	all = append(all, columns{
		{"CPU-s/GB", of((*Point).cpu)},
		{"errors", of(func(p *Point) string { return strconv.Itoa(p.Errors) })},
		{"checked", of(func(p *Point) string { return document.Known(p.Checked, whole) })},
		{"bad", of(func(p *Point) string { return document.Known(p.Bad, whole) })},
	}...)
	if !r.Settings.Latency {
		all = append(all, columns{{"% by rail", of(func(p *Point) string { return shares(p.Rails) })}}...)
	}
	if slices.ContainsFunc(r.Points, func(p Point) bool { return p.Peers > 1 }) {
		all = append(all, columns{
			{"initiators", either(func(p *Point) string { return strconv.Itoa(p.Peers) }, func(*Reference) string { return "1" })},
			{"min/max", of(func(p *Point) string { return p.fair(func(f *stats.Fairness) float64 { return f.MinMax }) })},
			{"Jain", of(func(p *Point) string { return p.fair(func(f *stats.Fairness) float64 { return f.Jain }) })},
		}...)
	}
	if len(r.Settings.KV) > 0 {
		all = append(all, columns{{"KV of", func(l line) string { return r.kvOf(l.block()) }}}...)
	}
	return all.Table(title, 1, r.lines())
}

// lines are the rows of the table.
func (r *Result) lines() (all []line) {
	for i := range r.Points {
		p := &r.Points[i]
		all = append(all, line{Point: p})
		if i+1 < len(r.Points) && r.Points[i+1].Op == p.Op && r.Points[i+1].Block == p.Block {
			continue
		}
		for k := range r.References {
			if o := &r.References[k]; o.Op == p.Op && o.Block == p.Block && o.Error == "" {
				all = append(all, line{beside: o})
			}
		}
	}
	return all
}

func (l line) block() int64 {
	if l.Point == nil {
		return l.beside.Block
	}
	return l.Point.Block
}

// op marks a point that has faults, and one with an immediate where no other column says so.
func (r *Result) op(p *Point) string {
	op := p.Op
	if p.Imm && !r.Settings.Latency {
		op += " + immediate"
	}
	if p.Errors > 0 || p.Interrupted || p.Bad != nil && *p.Bad > 0 {
		op += " *"
	}
	return op
}

func (p *Point) cpu() string {
	if p.CPU.Bytes == 0 {
		return ""
	}
	return three(p.CPU.PerGB)
}

func (p *Point) fair(of func(*stats.Fairness) float64) string {
	return document.Known(p.Fairness, func(f stats.Fairness) string { return document.Fixed(of(&f), 3) })
}

func (o *Reference) samples() string {
	if o.Samples == 0 {
		return ""
	}
	return whole(o.Samples)
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

// subject names what a point is of: all of it that the run varies besides op and block.
func (r *Result) subject(p *Point) string {
	parts := []string{"kvferry"}
	vary := func(of func(*Point) any, text string) {
		if slices.ContainsFunc(r.Points, func(q Point) bool { return of(&q) != of(p) }) {
			parts = append(parts, text)
		}
	}
	vary(func(q *Point) any { return q.Batch }, fmt.Sprintf("x %d", p.Batch))
	vary(func(q *Point) any { return q.Threads }, fmt.Sprintf("threads %d", p.Threads))
	vary(func(q *Point) any { return q.Depth }, fmt.Sprintf("depth %d", p.Depth))
	vary(func(q *Point) any { return q.Peers }, fmt.Sprintf("initiators %d", p.Peers))
	vary(func(q *Point) any { return q.Count }, fmt.Sprintf("rails %d", p.Count))
	vary(func(q *Point) any { return q.Select }, p.Select)
	if p.Imm {
		parts = append(parts, "+ immediate")
	}
	return strings.Join(parts, " ")
}

// kvOf returns what of the models' KV has this size.
func (r *Result) kvOf(block int64) string {
	var of []string
	for _, size := range r.Settings.KV {
		if size.Bytes == block {
			of = append(of, size.Model+": "+size.What)
		}
	}
	return strings.Join(of, "; ")
}

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

// shares are what each rail has moved, in percent of all.
func shares(use []RailUse) string {
	sum := int64(0)
	for _, u := range use {
		sum += u.Bytes
	}
	if sum == 0 {
		return ""
	}
	parts := make([]string, len(use))
	for i, u := range use {
		parts[i] = fmt.Sprintf("%.1f", 100*float64(u.Bytes)/float64(sum))
	}
	return strings.Join(parts, "/")
}

// three writes a figure with three digits or more that say something.
func three(v float64) string {
	switch {
	case v < 0.1:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case v < 10:
		return fmt.Sprintf("%.3f", v)
	case v < 1000:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// to is this end and the other one, in lines of conditions.
func (e *End) to(target *End) []string {
	where := target.Where
	if target.Machine.String() != e.Machine.String() {
		where += ", " + target.Machine.String()
	}
	return []string{
		"rails      " + strings.Join(e.Rails, ", ") + " to " + strings.Join(target.Rails, ", "),
		"initiator  " + e.Machine.String(),
		"target     " + where,
	}
}

// conditions say what was measured and on what, one a line.
func (r *Result) conditions() []string {
	s := &r.Settings
	length := fmt.Sprintf("%gs a point", s.DurationS)
	if s.Iterations > 0 {
		length = fmt.Sprintf("%d batches a thread in a point", s.Iterations)
	}
	limit := "none is known (--limit)"
	if s.LimitGBps != nil {
		limit = fmt.Sprintf("%.4g GB/s (%s)", *s.LimitGBps, s.LimitSource)
	}
	return append(r.Initiator.to(&r.Target),
		fmt.Sprintf("points     %s after %gs of warm-up, segments of %s, slices of %s, seed %d, check %s", length, s.WarmupS, config.FormatSize(s.Segment), config.FormatSize(int64(s.Slice)), s.Seed,
			map[bool]string{true: "of every block", false: "off"}[s.Check]),
		"limit      "+limit,
	)
}

// remarks returns the faults and notes.
func (r *Result) remarks() (notes document.Notes) {
	for i := range r.Points {
		p := &r.Points[i]
		name := p.String()
		if p.Errors > 0 {
			notes.Addf(document.Fault, "%s: %d batches failed, the first: %s", name, p.Errors, p.Error)
		}
		if p.Bad != nil && *p.Bad > 0 {
			notes.Addf(document.Fault, "%s: %d of %d blocks are wrong, the first: %s", name, *p.Bad, *p.Checked, p.BadAt)
		}
		switch {
		case p.Interrupted:
			notes.Add(document.Fault, name+": interrupted")
		case p.Batches == 0 && p.Errors == 0:
			notes.Add(document.Fault, name+": no batch ended within the measured time: raise --duration")
		case p.Batches < 20:
			notes.Addf(document.Info, "%s: %d batches are few: raise --duration or --iters", name, p.Batches)
		}
		for _, u := range p.Rails {
			if u.Retries > 0 {
				notes.Addf(document.Info, "%s: %d slices were sent again over %s", name, u.Retries, u.Name)
			}
		}
	}
	notes.Add(document.Info, r.Notes...)
	if r.Error != "" {
		notes.Add(document.Fault, "the run ended early: "+r.Error)
	}
	return notes
}

// perftestMB is the megabyte of perftest's lines.
const perftestMB = 1 << 20

// WritePerftest prints lines as ib_write_bw does: a message is a block, and the
// peak is that of the best tenth of the interval.
func (r *Result) WritePerftest(w io.Writer) error {
	var b strings.Builder
	rule := strings.Repeat("-", 87) + "\n"
	op := ""
	for i := range r.Points {
		p := &r.Points[i]
		if p.Op != op {
			op = p.Op
			fmt.Fprintf(&b, "%s                    kvferry rail bench, %s\n%s", rule, op, rule)
			b.WriteString(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n")
		}
		fmt.Fprintf(&b, " %-7d    %-10d       %-7.2f            %-7.2f\t\t     %-7.6f\n", p.Block, p.Blocks,
			p.PeakGBps*1e9/perftestMB, p.GBps*1e9/perftestMB, p.OpsPerS/1e6)
	}
	b.WriteString(rule)
	for _, line := range r.remarks() {
		b.WriteString(" " + line.String() + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
