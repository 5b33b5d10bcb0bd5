package rail

import (
	"encoding/csv"
	"fmt"
	"image/color"
	"io"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"kvferry/bench/page"
	"kvferry/internal/config"
	"kvferry/transport"
)

// A FailoverResult is a run: its conditions, what the rails did over time, and how
// they took each fault.
type FailoverResult struct {
	Command   []string            `json:"command"`
	Started   time.Time           `json:"started"`
	Began     time.Time           `json:"began"` // of the samples
	Initiator End                 `json:"initiator"`
	Target    End                 `json:"target"`
	Select    transport.Selection `json:"select"`
	Block     int64               `json:"block_bytes"`
	Batch     int                 `json:"batch"`
	Threads   int                 `json:"threads"`
	Depth     int                 `json:"depth"`
	Slice     int                 `json:"slice_bytes"`
	Segment   int64               `json:"segment_bytes"`
	Seed      uint64              `json:"seed"`

	Names      []string     `json:"rails"`
	Samples    timeline     `json:"samples"`
	Changes    []pathChange `json:"path_events"`
	Recoveries []Recovery   `json:"faults"`

	Bytes      int64  `json:"bytes"`         // of completed batches, warm-up and all
	Counted    int64  `json:"counted_bytes"` // what the rails say that they completed
	Errors     int    `json:"errors"`        // batches
	FirstError string `json:"first_error,omitempty"`
	Checked    int64  `json:"checked"` // blocks, at the end, with those around them
	Bad        int64  `json:"bad"`
	BadAt      string `json:"bad_at,omitempty"`

	Interrupted bool   `json:"interrupted,omitempty"`
	Error       string `json:"error,omitempty"`
}

// Sound says that all was checked, that no batch failed, no byte is wrong, and the
// rails completed as many bytes as the batches have: none was lost, none counted
// twice.
func (r *FailoverResult) Sound() bool {
	return r.Checked > 0 && r.Errors == 0 && r.Bad == 0 && r.Bytes == r.Counted && r.Error == "" && !r.Interrupted
}

const (
	failoverFile = "failover.json"
	samplesFile  = "samples.csv"
)

func (r *FailoverResult) files() files {
	return files{{Name: failoverFile, Write: r.WriteJSON}, {Name: samplesFile, Write: r.WriteCSV}, {Name: reportFile, Write: r.WriteHTML}}
}

// WriteJSON writes all that was recorded.
func (r *FailoverResult) WriteJSON(w io.Writer) error { return page.WriteJSON(w, r) }

// WriteCSV writes a line a sample: seconds, and for each rail the bytes completed and
// those posted again so far.
func (r *FailoverResult) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	head := []string{"seconds"}
	for _, name := range r.Names {
		head = append(head, name+" bytes", name+" resent")
	}
	_ = c.Write(head) // c.Error has what went wrong
	for i := range r.Samples {
		s := &r.Samples[i]
		row := []string{strconv.FormatFloat(s.At.Seconds(), 'f', 6, 64)}
		for k := range s.Bytes {
			row = append(row, strconv.FormatInt(s.Bytes[k], 10), strconv.FormatInt(s.Resent[k], 10))
		}
		_ = c.Write(row)
	}
	c.Flush()
	return c.Error()
}

// table is a row a fault.
func (r *FailoverResult) table() page.Table {
	t := page.Table{
		Title: "faults; detect is the engine's word, recovered 95 % of the ideal over the next 0.5 s (a rail that is back: 90 % of its own), gap without any completion, worst 0.1 s in the second after it as a share of the ideal",
		Left:  3,
		Head:  []string{"at", "fault", "rail", "detect", "recovered", "gap", "worst 0.1 s", "resent MB", "then GB/s", "% of ideal", "rail GB/s", "% of its own"},
	}
	ms := func(d *time.Duration) string {
		if d == nil {
			return "-"
		}
		return fmt.Sprintf("%.0f ms", float64(*d)/1e6)
	}
	percent := func(v, of float64) string {
		if of <= 0 {
			return "-"
		}
		return fmt.Sprintf("%.1f", 100*v/of)
	}
	for i := range r.Recoveries {
		f := &r.Recoveries[i]
		what := f.Action
		if f.Action == setRate {
			what += fmt.Sprintf(" %.3g Gbit/s", f.Rate*8/1e9)
		}
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("%.3f s", f.At.Seconds()), what, r.Names[f.Rail], ms(f.Detect), ms(f.Recover), ms(&f.Gap), percent(f.Worst, f.Ideal) + " %",
			fmt.Sprintf("%.2f", float64(f.Resent)/1e6), three(f.After / 1e9), percent(f.After, f.Ideal), three(f.Share / 1e9), percent(f.Share, f.Own),
		})
	}
	return t
}

// plotColumns is how wide the plot for a terminal is.
const plotColumns = 80

// lines draw each rail's rate and the sum, a character a stretch of time; full height
// is the row's own highest.
func (r *FailoverResult) lines() []string {
	end := r.Samples.End()
	if end == 0 {
		return nil
	}
	const levels = " ▁▂▃▄▅▆▇█"
	step := end / plotColumns
	wide := len("all rails")
	for _, name := range r.Names {
		wide = max(wide, len(name))
	}
	row := func(name string, rate func(from, to time.Duration) float64) string {
		values, top := make([]float64, plotColumns), 0.0
		for i := range values {
			values[i] = rate(time.Duration(i)*step, time.Duration(i+1)*step)
			top = max(top, values[i])
		}
		var b strings.Builder
		for _, v := range values {
			level := 0
			if top > 0 && v > 0 {
				level = max(1, min(8, int(v/top*8+0.5)))
			}
			b.WriteRune([]rune(levels)[level])
		}
		return fmt.Sprintf("%-*s |%s| %s", wide, name, b.String(), three(top/1e9))
	}
	var out []string
	for k, name := range r.Names {
		out = append(out, row(name, func(from, to time.Duration) float64 { return r.Samples.Rate(k, from, to) }))
	}
	out = append(out, row("all rails", r.together))
	marks := []byte(strings.Repeat(" ", plotColumns))
	for i := range r.Recoveries {
		f := &r.Recoveries[i]
		marks[min(plotColumns-1, int(f.At/max(step, 1)))] = byte('1' + i%9)
	}
	return append(out, fmt.Sprintf("%-*s |%s| %.3g s", wide, "faults", marks, end.Seconds()))
}

// together is the rate of all rails.
func (r *FailoverResult) together(from, to time.Duration) (sum float64) {
	for k := range r.Names {
		sum += r.Samples.Rate(k, from, to)
	}
	return sum
}

// conditions say what was measured and on what, one a line.
func (r *FailoverResult) conditions() []string {
	return append(r.Initiator.to(&r.Target), fmt.Sprintf("load       write %s x %d, threads %d, depth %d, select %s, slices of %s, segments of %s, seed %d",
		config.FormatSize(r.Block), r.Batch, r.Threads, r.Depth, r.Select, config.FormatSize(int64(r.Slice)), config.FormatSize(r.Segment), r.Seed))
}

// remarks are the verdict and what went wrong, one a line.
func (r *FailoverResult) remarks() []string {
	var lines []string
	if len(r.Recoveries) == 0 {
		lines = append(lines, "  no fault is known of: --fault or --faults says when they were")
	}
	if r.Errors > 0 {
		lines = append(lines, fmt.Sprintf("* %d batches failed, the first: %s", r.Errors, r.FirstError))
	}
	switch {
	case r.Interrupted:
		lines = append(lines, "* interrupted: nothing was checked")
	case r.Checked == 0:
		lines = append(lines, "* nothing was checked")
	case r.Bad > 0:
		lines = append(lines, fmt.Sprintf("* %d of %d blocks are wrong, the first: %s", r.Bad, r.Checked, r.BadAt))
	default:
		lines = append(lines, fmt.Sprintf("  nothing lost, nothing twice: %d blocks are those of their last round; %.3f GB in batches, %.3f GB by the rails' count",
			r.Checked, float64(r.Bytes)/1e9, float64(r.Counted)/1e9))
	}
	if r.Bytes != r.Counted && r.Errors == 0 && !r.Interrupted {
		lines = append(lines, fmt.Sprintf("* the rails completed %d bytes and the batches have %d", r.Counted, r.Bytes))
	}
	if r.Error != "" {
		lines = append(lines, "* the run ended early: "+r.Error)
	}
	return lines
}

// WriteText prints the conditions, the plot, a row a fault, and the verdict.
func (r *FailoverResult) WriteText(w io.Writer) error {
	var b strings.Builder
	page.WriteLines(&b, r.conditions())
	b.WriteString("\nGB/s over time; at the right the highest\n")
	page.WriteLines(&b, r.lines())
	b.WriteString("\n")
	if len(r.Recoveries) > 0 {
		r.table().WriteText(&b)
	}
	page.WriteLines(&b, r.remarks())
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteHTML writes report.html: the rates over time with the faults in them, the
// table and all that was recorded, in a file that loads nothing from elsewhere.
func (r *FailoverResult) WriteHTML(w io.Writer) error {
	report := page.Page{
		Title: "kvferry rail failover", Sub: append([]string{"Measured " + r.Started.UTC().Format("2006-01-02 15:04 UTC") + "."}, r.conditions()...),
		Lines: r.remarks(),
	}
	p, err := r.plot()
	if err != nil {
		return err
	}
	report.Sections = []page.Section{{Plots: []*page.Plot{p}, Tables: []page.HTMLTable{r.table().HTML(-1)}}}
	return report.Write(w, r)
}

// plotStep is the time that a point of the plot is a mean of.
const plotStep = 50 * time.Millisecond

func (r *FailoverResult) plot() (*page.Plot, error) {
	p := page.NewPlot("GB/s over time, by rail and together")
	p.X.Label.Text = "seconds"
	end, top := r.Samples.End(), 0.0
	draw := func(i int, name string, rate func(from, to time.Duration) float64) error {
		var xy plotter.XYs
		for t := time.Duration(0); t+plotStep <= end; t += plotStep {
			v := rate(t, t+plotStep) / 1e9
			xy, top = append(xy, plotter.XY{X: (t + plotStep/2).Seconds(), Y: v}), max(top, v)
		}
		if len(xy) == 0 {
			return nil
		}
		_, err := p.Curve(i, name, xy, false)
		return err
	}
	for k, name := range r.Names {
		if err := draw(k+1, name, func(a, b time.Duration) float64 { return r.Samples.Rate(k, a, b) }); err != nil {
			return nil, err
		}
	}
	if err := draw(0, "all", r.together); err != nil {
		return nil, err
	}
	for i := range r.Recoveries {
		at := r.Recoveries[i].At.Seconds()
		line, err := plotter.NewLine(plotter.XYs{{X: at, Y: 0}, {X: at, Y: top * 1.05}})
		if err != nil {
			return nil, err
		}
		line.Color, line.Dashes = color.Gray{0x55}, []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
		if i == 0 {
			p.Key("fault", line)
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, max(end.Seconds(), 1), 0, max(top*1.1, 1e-9)
	return p, nil
}
