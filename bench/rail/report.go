package rail

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"kvferry/bench/page"
	"kvferry/internal/config"
)

// Files of a run's folder.
const (
	resultsFile = "results.json"
	csvFile     = "results.csv"
	reportFile  = "report.html"
)

// files are what a run leaves in its folder.
type files []page.File

// write writes them, if there is a folder.
func (f files) write(dir string) error {
	if dir == "" {
		return nil
	}
	return page.WriteFiles(dir, f...)
}

// listing says where they are, if there is a folder.
func (f files) listing(dir string) string {
	if dir == "" {
		return ""
	}
	var names []string
	for _, file := range f {
		names = append(names, file.Name)
	}
	return page.Listing(dir, names...) + "\n"
}

func (r *Result) files() files {
	return files{{Name: resultsFile, Write: r.WriteJSON}, {Name: csvFile, Write: r.WriteCSV}, {Name: reportFile, Write: r.WriteHTML}}
}

// print prints the result; kept says that its files are there.
func (r *Result) print(cfg *Config, kept bool) error {
	switch cfg.Format {
	case JSON:
		return r.WriteJSON(cfg.Stdout)
	case CSV:
		return r.WriteCSV(cfg.Stdout)
	case Perftest:
		return r.WritePerftest(cfg.Stdout)
	}
	err := r.WriteText(cfg.Stdout)
	if kept {
		_, e := io.WriteString(cfg.Stdout, r.files().listing(cfg.Out))
		err = errors.Join(err, e)
	}
	return err
}

// WriteJSON writes all that was recorded.
func (r *Result) WriteJSON(w io.Writer) error { return page.WriteJSON(w, r) }

// faulty is what a row has a star for.
func (p *Point) faulty() bool { return p.Errors > 0 || p.Interrupted || p.Bad != nil && *p.Bad > 0 }

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
func (r *Result) table() page.Table {
	if r.Settings.Latency {
		return r.latencyTable()
	}
	t := page.Table{
		Title: "measured; ops are blocks, latency (p50 ..) and post are of a batch in µs, CPU is of both ends", Left: 1,
		Head: []string{
			"op", "block", "batch", "threads", "depth", "rails", "select", "GB/s", "% of limit", "ops/s", "p50", "p99", "p99.9", "post", "CPU-s/GB", "errors", "checked", "bad", "% by rail",
		},
	}
	several := r.head(&t)
	for i := range r.Points {
		p := &r.Points[i]
		row := []string{
			p.Op, config.FormatSize(p.Block), strconv.Itoa(p.Batch), strconv.Itoa(p.Threads), strconv.Itoa(p.Depth), strconv.Itoa(p.Count), p.Select,
			three(p.GBps), "-", fmt.Sprintf("%.0f", p.OpsPerS),
			percentile(p.Latency.P50US, 50, p.Batches), percentile(p.Latency.P99US, 99, p.Batches), percentile(p.Latency.P999US, 99.9, p.Batches),
			fmt.Sprintf("%.1f", p.PostUS), "-", strconv.Itoa(p.Errors), "-", "-", shares(p.Rails),
		}
		if p.LimitPct != nil {
			row[8] = fmt.Sprintf("%.1f", *p.LimitPct)
		}
		p.found(row, row[14:18])
		if p.Imm {
			row[0] += " + immediate"
		}
		if several {
			row = append(row, p.shared()...)
		}
		t.Rows = append(t.Rows, r.withKV(row, p.Block))
	}
	return t
}

// head ends a table's heading, and says whether there are several initiators.
func (r *Result) head(t *page.Table) (several bool) {
	if several = slices.ContainsFunc(r.Points, func(p Point) bool { return p.Peers > 1 }); several {
		t.Head = append(t.Head, "initiators", "min/max", "Jain")
	}
	if len(r.Settings.KV) > 0 {
		t.Head = append(t.Head, "KV of")
	}
	return several
}

// found fills in CPU time, errors, blocks that were checked and bad ones, and the row's star.
func (p *Point) found(row, cells []string) {
	if p.CPU.Bytes > 0 {
		cells[0] = three(p.CPU.PerGB)
	}
	if p.Checked != nil {
		cells[2], cells[3] = strconv.FormatInt(*p.Checked, 10), strconv.FormatInt(*p.Bad, 10)
	}
	if p.faulty() {
		row[0] += " *"
	}
}

// shares are what each rail has moved, in percent of all.
func shares(use []RailUse) string {
	sum := int64(0)
	for _, u := range use {
		sum += u.Bytes
	}
	if sum == 0 {
		return "-"
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

// remarks are the faults and notes, one a line.
func (r *Result) remarks() []string {
	var lines []string
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
			lines = append(lines, fmt.Sprintf("* %s: %d batches failed, the first: %s", name, p.Errors, p.Error))
		}
		if p.Bad != nil && *p.Bad > 0 {
			lines = append(lines, fmt.Sprintf("* %s: %d of %d blocks are wrong, the first: %s", name, *p.Bad, *p.Checked, p.BadAt))
		}
		switch {
		case p.Interrupted:
			lines = append(lines, "* "+name+": interrupted")
		case p.Batches == 0 && p.Errors == 0:
			lines = append(lines, "* "+name+": no batch ended within the measured time: raise --duration")
		case p.Batches < 20:
			lines = append(lines, fmt.Sprintf("  %s: %d batches are few: raise --duration or --iters", name, p.Batches))
		}
		for _, u := range p.Rails {
			if u.Retries > 0 {
				lines = append(lines, fmt.Sprintf("  %s: %d slices were sent again over %s", name, u.Retries, u.Name))
			}
		}
	}
	for _, n := range r.Notes {
		lines = append(lines, "  "+n)
	}
	if r.Error != "" {
		lines = append(lines, "* the run ended early: "+r.Error)
	}
	return lines
}

// WriteText prints the conditions, a row a point, and what is to be said of them.
func (r *Result) WriteText(w io.Writer) error {
	var b strings.Builder
	page.WriteLines(&b, r.conditions())
	b.WriteString("\n")
	r.table().WriteText(&b)
	remarks := append(r.legend(), r.remarks()...)
	page.WriteLines(&b, remarks)
	if len(remarks) > 0 {
		b.WriteString("\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes a line a point, with units in the heading's names. Figures that
// there are none of are empty.
func (r *Result) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	_ = c.Write([]string{ // c.Error has what went wrong
		"op", "block_bytes", "batch", "threads", "depth", "rails", "select", "seconds", "batches", "bytes", "gb_per_s", "peak_gb_per_s", "limit_percent", "ops_per_s",
		"latency_min_us", "latency_mean_us", "latency_p50_us", "latency_p99_us", "latency_p99_9_us", "latency_max_us", "post_us", "post_p99_us",
		"cpu_s_per_gb", "errors", "blocks_checked", "blocks_bad", "rail_bytes", "of", "immediate", "initiators", "fairness_min_max", "fairness_jain",
	})
	f := func(v float64) string { return strconv.FormatFloat(v, 'g', 7, 64) }
	whole := func(n int64) string { return strconv.FormatInt(n, 10) }
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
		_ = c.Write([]string{
			p.Op, strconv.FormatInt(p.Block, 10), strconv.Itoa(p.Batch), strconv.Itoa(p.Threads), strconv.Itoa(p.Depth), strconv.Itoa(p.Count), p.Select, f(p.Seconds),
			strconv.FormatInt(p.Batches, 10), strconv.FormatInt(p.Bytes, 10), f(p.GBps), f(p.PeakGBps), known(p.LimitPct, f), f(p.OpsPerS),
			f(l.MinUS), f(l.MeanUS), f(l.P50US), f(l.P99US), f(l.P999US), f(l.MaxUS), f(p.PostUS), f(p.PostP99US),
			cpu, strconv.Itoa(p.Errors), known(p.Checked, whole), known(p.Bad, whole), strings.Join(moved, " "), "kvferry", strconv.FormatBool(p.Imm), strconv.Itoa(max(p.Peers, 1)), even, jain,
		})
	}
	for _, o := range r.References {
		if o.Error == "" {
			_ = c.Write(o.csv(f))
		}
	}
	c.Flush()
	return c.Error()
}

// known is a figure as it is written, "" of none.
func known[T any](v *T, text func(T) string) string {
	if v == nil {
		return ""
	}
	return text(*v)
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
		b.WriteString(" " + line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
