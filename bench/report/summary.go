package report

import (
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"kvferry/bench/observe"
	"kvferry/bench/page"
)

// Names of the files in a result folder, beside page.RecordsFile.
const (
	SummaryFile = "summary.json"
	TableFile   = "table.md"
	ReportFile  = "report.html"
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
	samples       map[string]sample
	faults, notes []string
}

// New computes a run's figures.
func New(r *Run) *Report {
	p := &Report{Run: r, samples: r.samples()}
	p.M = r.metrics(p.samples)
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

// Write writes summary.json of any number of runs that were one command: a run, or the real
// and the virtual clock's.
func Write(w io.Writer, reports ...*Report) error {
	s := Summary{Rows: []Row{}}
	for _, p := range reports {
		s.Rows = append(s.Rows, p.Row())
		s.Config, s.Machine = p.Setup.Config, p.Setup.Machine
	}
	return page.WriteJSON(w, s)
}

// Files are those that are functions of the records, of one command's runs.
func Files(reports ...*Report) []page.File {
	return []page.File{
		{Name: SummaryFile, Write: func(w io.Writer) error { return Write(w, reports...) }},
		{Name: TableFile, Write: func(w io.Writer) error { return WriteMarkdown(w, reports...) }},
		{Name: ReportFile, Write: func(w io.Writer) error { return WriteHTML(w, reports...) }},
	}
}

// lines are faults, what casts doubt, and notes, marked as page.Page has them.
func (p *Report) lines() []string {
	var lines []string
	for _, f := range p.faults {
		lines = append(lines, "* "+f)
	}
	if p.disturbed() {
		lines = append(lines, "~ the client's machine was disturbed: "+p.Disturbance.String())
	}
	for _, n := range p.notes {
		lines = append(lines, "  "+n)
	}
	return lines
}

// tables are all tables of a run but that of its setup.
func (p *Report) tables() []page.Table {
	tables := []page.Table{p.M.latencyTable(), p.M.rateTable(), p.M.countTable()}
	if p.Steady != nil {
		tables = append(tables, p.Steady.Table)
	}
	if t, ok := p.failureTable(); ok {
		tables = append(tables, t)
	}
	tables = append(tables, p.Tables...)
	if t, ok := p.M.stageTable(); ok {
		tables = append(tables, t)
	}
	tables = append(tables, p.groupTables()...)
	if t, ok := p.machineTable(); ok {
		tables = append(tables, t)
	}
	if t := p.slowestTable(); len(t.Rows) > 0 {
		tables = append(tables, t)
	}
	return tables
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
	for _, line := range p.lines() {
		switch {
		case strings.HasPrefix(line, "* "):
			b.WriteString("fault: " + line[2:] + "\n")
		case strings.HasPrefix(line, "~ "):
			b.WriteString("disturbed: " + line[2:] + "\n")
		default:
			b.WriteString("note: " + line[2:] + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// AppendLine appends a result to a file, which it makes with its folder: as SGLang does to
// --output-file, and vLLM with --append-result to --result-filename. Both end up with a
// line a run; vLLM writes no newline after the last.
func AppendLine(path string, line []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return &page.OutputError{Err: err}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return &page.OutputError{Err: err}
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
		return &page.OutputError{Err: err}
	}
	return nil
}
