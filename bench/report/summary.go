package report

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
)

// A Summary is summary.json.
type Summary struct {
	Rows    []Row `json:"rows"`
	Config  any   `json:"config"`
	Machine any   `json:"machine"`
}

// A Row of summary.json is one run. The names are those of kvferry reproduce mooncake's rows.
type Row struct {
	Setup
	Rate        any                  `json:"request_rate"`     // a number, or "inf"
	Burst       any                  `json:"burstiness"`       // a number, or "inf"
	Point       float64              `json:"point,omitempty"`  // of a search: Run.Point
	Repeat      int                  `json:"repeat,omitempty"` // Run.Repeat
	Interrupted bool                 `json:"interrupted,omitempty"`
	Disturbance *observe.Disturbance `json:"disturbance,omitempty"`
	Metrics     *Metrics             `json:"metrics"`
	Steady      any                  `json:"steady,omitempty"`
	Server      any                  `json:"server,omitempty"`
	Faults      []string             `json:"faults"` // make the row unusable
	Notes       []string             `json:"notes"`  // qualify it
}

// A Report is a run with its figures, computed once.
type Report struct {
	*Run
	M             *Metrics
	samples       map[string]stats.Sample
	faults, notes []string
}

// New computes a run's figures.
func New(r *Run) *Report {
	p := &Report{Run: r}
	p.M, p.samples = r.metrics()
	p.faults, p.notes = r.notes(p.M)
	return p
}

// Row is the run in summary.json.
func (p *Report) Row() Row {
	row := Row{
		Setup: p.Setup, Rate: infinite(p.rate()), Burst: infinite(p.Burstiness), Point: p.Point, Repeat: p.Repeat, Interrupted: p.Interrupted, Disturbance: p.Disturbance,
		Metrics: p.M, Server: p.Server, Faults: append([]string{}, p.faults...), Notes: append([]string{}, p.notes...),
	}
	if p.Steady != nil {
		row.Steady = p.Steady.Figures
	}
	row.Setup.Machine, row.Setup.Config = nil, nil // of the whole file
	return row
}

// infinite is a number, or "inf" where JSON has none.
func infinite(v float64) any {
	if math.IsInf(v, 1) {
		return "inf"
	}
	return v
}

// remarks returns faults, what casts doubt, and notes.
func (p *Report) remarks() (notes document.Notes) {
	notes.Add(document.Fault, p.faults...)
	if p.disturbed() {
		notes.Add(document.Doubt, "the client's machine was disturbed: "+p.Disturbance.String())
	}
	notes.Add(document.Info, p.notes...)
	return notes
}

// tables are all tables of a run but that of its setup.
func (p *Report) tables() []document.Table {
	tables := []document.Table{p.M.latencyTable(), p.M.rateTable(), p.M.countTable()}
	if p.Steady != nil {
		tables = append(tables, p.Steady.Table)
	}
	tables = append(append(tables, p.failureTable()), p.Tables...)
	tables = append(append(tables, p.M.stageTable()), p.groupTables()...)
	return append(tables, p.machineTable(), p.slowestTable())
}

// WriteNotes prints what stands below a tool's report on a terminal: faults and notes, and
// the figures that the tool's report does not have.
func (p *Report) WriteNotes(w io.Writer) error {
	var b strings.Builder
	if p.Label != "" {
		b.WriteString(p.Label + "\n")
	}
	if p.Cluster != "" {
		b.WriteString("cluster: " + p.Cluster + "\n")
	}
	b.WriteString(p.remarks().InWords())
	_, err := io.WriteString(w, b.String())
	return err
}

// AppendLine appends a result to a file, which it makes with its folder: as SGLang does to
// --output-file, and vLLM with --append-result to --result-filename. Both end up with a
// line a run; vLLM writes no newline after the last.
func AppendLine(path string, line []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return &document.OutputError{Err: err}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return &document.OutputError{Err: err}
	}
	info, err := f.Stat()
	if err == nil && info.Size() > 0 {
		last := make([]byte, 1)
		if _, err = f.ReadAt(last, info.Size()-1); err == nil && last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return &document.OutputError{Err: err}
	}
	return nil
}
