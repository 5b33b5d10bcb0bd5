package rail

import (
	"fmt"
	"time"

	"kvferry/bench/document"
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

const failoverFile = "failover.json"

// document returns the report: the rates over time with the faults marked, and the table.
func (r *FailoverResult) document() *document.Document {
	all := document.Section{Plots: []document.Plot{r.plot()}, Tables: []document.Table{r.table()}}
	return &document.Document{
		Title: "kvferry rail failover", Made: document.When("Measured", r.Started), Head: r.conditions(), Notes: r.remarks(), Sections: []document.Section{all},
		Data: r, DataName: failoverFile,
	}
}

// table is a row a fault.
func (r *FailoverResult) table() document.Table {
	t := document.Table{
		Title: "faults; detect is the engine's word, recovered 95 % of the ideal over the next 0.5 s (a rail that is back: 90 % of its own), gap without any completion, worst 0.1 s in the second after it as a share of the ideal",
		Left:  3,
		Head:  []string{"at", "fault", "rail", "detect", "recovered", "gap", "worst 0.1 s", "resent MB", "then GB/s", "% of ideal", "rail GB/s", "% of its own"},
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/1e6) }
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
		t.Add(
			fmt.Sprintf("%.3f s", f.At.Seconds()), what, r.Names[f.Rail], document.Known(f.Detect, ms), document.Known(f.Recover, ms), ms(f.Gap), percent(f.Worst, f.Ideal)+" %",
			fmt.Sprintf("%.2f", float64(f.Resent)/1e6), three(f.After/1e9), percent(f.After, f.Ideal), three(f.Share/1e9), percent(f.Share, f.Own),
		)
	}
	return t
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

// remarks returns the verdict and what went wrong.
func (r *FailoverResult) remarks() (notes document.Notes) {
	if len(r.Recoveries) == 0 {
		notes.Add(document.Info, "no fault is known of: --fault or --faults says when they were")
	}
	if r.Errors > 0 {
		notes.Addf(document.Fault, "%d batches failed, the first: %s", r.Errors, r.FirstError)
	}
	switch {
	case r.Interrupted:
		notes.Add(document.Fault, "interrupted: nothing was checked")
	case r.Checked == 0:
		notes.Add(document.Fault, "nothing was checked")
	case r.Bad > 0:
		notes.Addf(document.Fault, "%d of %d blocks are wrong, the first: %s", r.Bad, r.Checked, r.BadAt)
	default:
		notes.Addf(document.Info, "nothing lost, nothing twice: %d blocks are those of their last round; %.3f GB in batches, %.3f GB by the rails' count",
			r.Checked, float64(r.Bytes)/1e9, float64(r.Counted)/1e9)
	}
	if r.Bytes != r.Counted && r.Errors == 0 && !r.Interrupted {
		notes.Addf(document.Fault, "the rails completed %d bytes and the batches have %d", r.Counted, r.Bytes)
	}
	if r.Error != "" {
		notes.Add(document.Fault, "the run ended early: "+r.Error)
	}
	return notes
}

// plotStep is the time that a point of the plot is a mean of.
const plotStep = 50 * time.Millisecond

func (r *FailoverResult) plot() document.Plot {
	end := r.Samples.End()
	c := document.Chart{Title: "GB/s over time, by rail and together", X: document.Axis{Label: "seconds", Max: max(end.Seconds(), 1)}, Mark: "fault"}
	add := func(name string, rate func(from, to time.Duration) float64) {
		one := document.Curve{Name: name}
		for t := time.Duration(0); t+plotStep <= end; t += plotStep {
			one.Add((t + plotStep/2).Seconds(), rate(t, t+plotStep)/1e9)
		}
		c.Curves = append(c.Curves, one)
	}
	add("all", r.together)
	for k, name := range r.Names {
		add(name, func(a, b time.Duration) float64 { return r.Samples.Rate(k, a, b) })
	}
	for i := range r.Recoveries {
		c.Marks = append(c.Marks, r.Recoveries[i].At.Seconds())
	}
	return c
}
