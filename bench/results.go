package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"kvferry/bench/page"
)

// A Row of summary.json is one cell.
type Row struct {
	Workload string `json:"workload"`
	Setting  string `json:"setting"`
	Repeat   int    `json:"repeat"`  // 0, 1, ..
	Handoff  string `json:"handoff"` // "none" without disaggregation, "unknown" of a server that does not say
	Link
	// Server is what the proxy said of itself, nil if it said nothing.
	Server *ServerInfo `json:"server,omitempty"`
	// Metrics is nil when the cluster never served.
	Metrics *Metrics `json:"metrics"`
	// Published is nil where nothing comparable was published.
	Published *Published `json:"published"`
	RelErr    *Figures   `json:"rel_err"` // (measured-published)/published
	// Faults make the cell unusable and the run a failure; Notes qualify it.
	Faults []string `json:"faults"`
	Notes  []string `json:"notes"`
	// Interrupted cells hold what was done when the run was stopped.
	Interrupted bool `json:"interrupted,omitempty"`
}

// name is the row as messages call it.
func (r *Row) name() string {
	name := r.Workload + " " + r.Setting
	if r.Repeat > 0 {
		name += fmt.Sprintf(" #%d", r.Repeat+1)
	}
	if r.Clock == ClockVirtual {
		name += " virtual"
	}
	return name
}

// A Cell is a row with the records it was computed from.
type Cell struct {
	Row
	Records []Record
}

// Summary is summary.json.
type Summary struct {
	Rows    []Row     `json:"rows"`
	Config  RunConfig `json:"config"`
	Machine Machine   `json:"machine"`
}

// RunConfig is how the run was asked for, as it stands in the results.
type RunConfig struct {
	Workloads    []string  `json:"workloads"`
	Settings     []Setting `json:"settings"`
	NumPrompts   int       `json:"num_prompts"`
	OutputTokens int       `json:"output_tokens"`
	Seed         uint32    `json:"seed"`
	Repeat       int       `json:"repeat"`
	Arrivals     string    `json:"arrivals"`
	TimeoutS     float64   `json:"request_timeout_s"`
	Started      time.Time `json:"started"`
	Command      []string  `json:"command"`
	System       any       `json:"system,omitempty"`
}

// Results are a whole run.
type Results struct {
	Cells   []Cell
	Config  RunConfig
	Machine Machine
}

// Summary is the results without their records.
func (r *Results) Summary() Summary {
	s := Summary{Rows: []Row{}, Config: r.Config, Machine: r.Machine}
	for i := range r.Cells {
		s.Rows = append(s.Rows, r.Cells[i].Row)
	}
	return s
}

// Names of the files in an output folder.
const (
	recordsFile = "results.jsonl"
	summaryFile = "summary.json"
	tableFile   = "table.md"
	reportFile  = "report.html"
)

// output is a run's folder. Records are appended and synced a cell at a time;
// the other files are functions of them and are replaced after each cell, each
// by a rename, so that whatever kills the run leaves whole files.
type output struct {
	dir     string
	records *os.File
}

// openOutput makes the folder. Records of an earlier run in it are kept under a
// name with their time.
func openOutput(dir string) (*output, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("output folder: %w", err)
	}
	path := filepath.Join(dir, recordsFile)
	switch info, err := os.Stat(path); {
	case err == nil:
		kept := filepath.Join(dir, "results-"+info.ModTime().UTC().Format("20060102T150405.000000000")+".jsonl")
		if err := os.Rename(path, kept); err != nil {
			return nil, fmt.Errorf("output folder: keep the earlier records: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("output folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("output folder: %w", err)
	}
	return &output{dir: dir, records: f}, nil
}

// add appends the records of the cells from first on and rewrites the rest.
func (o *output) add(r *Results, first int) error {
	w := bufio.NewWriter(o.records)
	enc := json.NewEncoder(w)
	for i := range r.Cells[first:] {
		for j := range r.Cells[first+i].Records {
			if err := enc.Encode(&r.Cells[first+i].Records[j]); err != nil {
				return fmt.Errorf("%s: %w", recordsFile, err)
			}
		}
	}
	if err := errors.Join(w.Flush(), o.records.Sync()); err != nil {
		return fmt.Errorf("%s: %w", recordsFile, err)
	}
	return errors.Join(
		o.replace(summaryFile, func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(r.Summary())
		}),
		o.replace(tableFile, func(w io.Writer) error { return WriteMarkdown(w, r) }),
		o.replace(reportFile, func(w io.Writer) error { return WriteHTML(w, r) }),
	)
}

func (o *output) replace(name string, write func(io.Writer) error) error {
	return page.Replace(o.dir, name, write)
}

func (o *output) Close() error { return o.records.Close() }

// ReadRecords reads a results.jsonl, for whoever computes other figures of it.
func ReadRecords(r io.Reader) ([]Record, error) {
	var records []Record
	dec := json.NewDecoder(r)
	for {
		var rec Record
		switch err := dec.Decode(&rec); {
		case errors.Is(err, io.EOF):
			return records, nil
		case err != nil:
			return records, fmt.Errorf("record %d: %w", len(records)+1, err)
		}
		records = append(records, rec)
	}
}
