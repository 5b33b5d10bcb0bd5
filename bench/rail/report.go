package rail

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/document"
	"kvferry/internal/config"
)

// Files of a run's folder.
const (
	resultsFile = "results.json"
	csvFile     = "results.csv"
)

// keep writes the result's files and prints it in the format that was asked for.
func (r *Result) keep(cfg *Config) error {
	d, print := r.document(), r.WritePerftest
	switch cfg.Format {
	case JSON:
		print = func(w io.Writer) error { return document.WriteJSON(w, r) }
	case CSV:
		print = r.WriteCSV
	case Perftest:
	default:
		return d.Keep(cfg.Stdout, cfg.Out)
	}
	lost := d.Write(cfg.Out)
	return errors.Join(print(cfg.Stdout), lost)
}

// line returns a line for a log, in which p is point i of n.
func (p *Point) line(i, n int) string {
	line := fmt.Sprintf("point %d/%d %s %s x %d, threads %d, depth %d, rails %d, %s: %.2f GB/s, p50 %.1f us, p99 %.1f us", i, n,
		p.Op, config.FormatSize(p.Block), p.Batch, p.Threads, p.Depth, p.Count, p.Select, p.GBps, p.Latency.P50US, p.Latency.P99US)
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

// table is a row a point.
func (r *Result) table() document.Table {
	if r.Settings.Latency {
		return r.latencyTable()
	}
	t := document.Table{
		Title: "measured; ops are blocks, latency (p50 ..) and post are of a batch in µs, CPU is of both ends", Left: 1,
		Head: []string{
			"op", "block", "batch", "threads", "depth", "rails", "select", "GB/s", "% of limit", "ops/s", "p50", "p99", "p99.9", "post", "CPU-s/GB", "errors", "checked", "bad", "% by rail",
		},
	}
	several := r.head(&t)
	for i := range r.Points {
		p := &r.Points[i]
		op := p.Op
		if p.Imm {
			op += " + immediate"
		}
		row := []string{
			op + p.star(), config.FormatSize(p.Block), strconv.Itoa(p.Batch), strconv.Itoa(p.Threads), strconv.Itoa(p.Depth), strconv.Itoa(p.Count), p.Select,
			three(p.GBps), document.Fixed(document.Number(p.LimitPct), 1), fmt.Sprintf("%.0f", p.OpsPerS),
			percentile(p.Latency.P50US, 50, p.Batches), percentile(p.Latency.P99US, 99, p.Batches), percentile(p.Latency.P999US, 99.9, p.Batches),
			fmt.Sprintf("%.1f", p.PostUS),
		}
		row = append(append(row, p.found()...), shares(p.Rails))
		if several {
			row = append(row, p.shared()...)
		}
		t.Add(r.withKV(row, p.Block)...)
	}
	return t
}

// head ends a table's heading, and says whether there are several initiators.
func (r *Result) head(t *document.Table) (several bool) {
	if several = slices.ContainsFunc(r.Points, func(p Point) bool { return p.Peers > 1 }); several {
		t.Head = append(t.Head, "initiators", "min/max", "Jain")
	}
	if len(r.Settings.KV) > 0 {
		t.Head = append(t.Head, "KV of")
	}
	return several
}

// found returns the cells for CPU time, errors, checked blocks and bad blocks.
func (p *Point) found() []string {
	cpu := ""
	if p.CPU.Bytes > 0 {
		cpu = three(p.CPU.PerGB)
	}
	return []string{cpu, strconv.Itoa(p.Errors), document.Known(p.Checked, whole), document.Known(p.Bad, whole)}
}

func whole(n int64) string { return strconv.FormatInt(n, 10) }

// star marks a row that has faults.
func (p *Point) star() string {
	if p.Errors > 0 || p.Interrupted || p.Bad != nil && *p.Bad > 0 {
		return " *"
	}
	return ""
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
		name := fmt.Sprintf("%s %s x %d, threads %d, depth %d", p.Op, config.FormatSize(p.Block), p.Batch, p.Threads, p.Depth)
		if r.varies() {
			name += fmt.Sprintf(", rails %d, %s", p.Count, p.Select)
		}
		if p.Peers > 1 {
			name += fmt.Sprintf(", initiators %d", p.Peers)
		}
		if p.Imm {
			name += ", with an immediate"
		}
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

// WriteCSV writes a line a point, with units in the heading's names. Figures that
// there are none of are empty.
func (r *Result) WriteCSV(w io.Writer) error {
	t := document.Table{Head: []string{
		"op", "block_bytes", "batch", "threads", "depth", "rails", "select", "seconds", "batches", "bytes", "gb_per_s", "peak_gb_per_s", "limit_percent", "ops_per_s",
		"latency_min_us", "latency_mean_us", "latency_p50_us", "latency_p99_us", "latency_p99_9_us", "latency_max_us", "post_us", "post_p99_us",
		"cpu_s_per_gb", "errors", "blocks_checked", "blocks_bad", "rail_bytes", "of", "immediate", "initiators", "fairness_min_max", "fairness_jain",
	}}
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 7, 64) }
	for i := range r.Points {
		p := &r.Points[i]
		cpu, even, jain := "", "", ""
		if p.CPU.Bytes > 0 {
			cpu = f(p.CPU.PerGB)
		}
		if p.Fairness != nil {
			even, jain = f(p.Fairness.MinMax), f(p.Fairness.Jain)
		}
		var moved []string
		for _, u := range p.Rails {
			moved = append(moved, fmt.Sprintf("%s=%d", u.Name, u.Bytes))
		}
		l := &p.Latency
		t.Rows = append(t.Rows, []string{
			p.Op, strconv.FormatInt(p.Block, 10), strconv.Itoa(p.Batch), strconv.Itoa(p.Threads), strconv.Itoa(p.Depth), strconv.Itoa(p.Count), p.Select, f(p.Seconds),
			strconv.FormatInt(p.Batches, 10), strconv.FormatInt(p.Bytes, 10), f(p.GBps), f(p.PeakGBps), document.Known(p.LimitPct, f), f(p.OpsPerS),
			f(l.MinUS), f(l.MeanUS), f(l.P50US), f(l.P99US), f(l.P999US), f(l.MaxUS), f(p.PostUS), f(p.PostP99US),
			cpu, strconv.Itoa(p.Errors), document.Known(p.Checked, whole), document.Known(p.Bad, whole), strings.Join(moved, " "), "kvferry", strconv.FormatBool(p.Imm), strconv.Itoa(max(p.Peers, 1)), even, jain,
		})
	}
	for _, o := range r.References {
		if o.Error == "" {
			t.Rows = append(t.Rows, o.csv(f))
		}
	}
	return t.WriteCSV(w)
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
