package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"kvferry/bench/page"
)

// A Row of summary.json is one cell.
type Row struct {
	Workload string `json:"workload"`
	Setting  string `json:"setting"`
	Repeat   int    `json:"repeat"`  // 0, 1, ..
	Attempt  int    `json:"attempt"` // 0, 1, ..: the one that is reported of those that a disturbed cell had
	Handoff  string `json:"handoff"` // "none" without disaggregation, "unknown" of a server that does not say
	Link
	// Server is what the proxy said of itself, nil if it said nothing.
	Server *ServerInfo `json:"server,omitempty"`
	// Disturbance is what else the machine did, nil in virtual time and of a cell that
	// was not measured to its end.
	Disturbance *Disturbance `json:"disturbance,omitempty"`
	// Attempts are all that the cell had, where it had more than one.
	Attempts []Attempt `json:"attempts,omitempty"`
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

// An Attempt is one measurement of a cell that was measured again.
type Attempt struct {
	Attempt     int          `json:"attempt"`
	MeanTTFTMS  float64      `json:"mean_ttft_ms"`
	MeanTPOTMS  float64      `json:"mean_tpot_ms"`
	Disturbance *Disturbance `json:"disturbance"`
	Interrupted bool         `json:"interrupted,omitempty"`
}

// disturbed says that the row is to be marked.
func (r *Row) disturbed() bool { return r.Disturbance != nil && len(r.Disturbance.Why) > 0 }

// name is the row as messages call it.
func (r *Row) name() string {
	name := r.Workload + " " + r.Setting
	if r.Repeat > 0 {
		name += fmt.Sprintf(" #%d", r.Repeat+1)
	}
	if r.Attempt > 0 {
		name += fmt.Sprintf(" attempt %d", r.Attempt+1)
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
	Retries      int       `json:"retries_disturbed"`
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

// output is a run's folder. A record goes to the kernel when its request ends; the
// other files are functions of all records so far and are replaced after each cell.
// What cannot be written is said once, and keeps nothing from being measured and
// printed.
type output struct {
	dir  string
	warn func(line string) // told when the first write fails

	mu      sync.Mutex
	records *os.File // nil if they cannot be written (any more)
	err     error    // the first; an OutputError
}

// openOutput makes the folder. Records of an earlier run in it are kept under a
// name with their time.
func openOutput(dir string, warn func(line string)) *output {
	o := &output{dir: dir, warn: warn}
	if err := o.open(); err != nil {
		o.fail(&page.OutputError{Err: err})
	}
	return o
}

func (o *output) open() error {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	path := filepath.Join(o.dir, recordsFile)
	switch info, err := os.Stat(path); {
	case err == nil:
		kept := filepath.Join(o.dir, "results-"+info.ModTime().UTC().Format("20060102T150405.000000000")+".jsonl")
		if err := os.Rename(path, kept); err != nil {
			return fmt.Errorf("keep the earlier records: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	var err error
	o.records, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	return err
}

// fail notes an error, if it is the first.
func (o *output) fail(err error) {
	if err == nil || o.err != nil {
		return
	}
	o.err = err
	o.warn("results cannot be kept in " + o.dir + " from here on: they are printed, and at the end why")
}

// record appends a record. It may be called from several goroutines.
func (o *output) record(r *Record) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("bench: record %+v: %v", r, err)) // only numbers that JSON has not, NaN or Inf
	}
	_, _ = o.Write(append(line, '\n'))
}

// Write appends whole lines to the records. It never fails: what cannot be kept is
// dropped.
func (o *output) Write(lines []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.records == nil {
		return len(lines), nil
	}
	if _, err := o.records.Write(lines); err != nil {
		// The last line may be half a record: nothing may come after it.
		o.fail(&page.OutputError{Err: errors.Join(err, o.records.Close())})
		o.records = nil
	}
	return len(lines), nil
}

// save rewrites files of the folder, and has the system bring the records to the
// disk.
func (o *output) save(files ...page.File) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.records != nil {
		if err := o.records.Sync(); err != nil {
			o.fail(&page.OutputError{Err: err})
		}
	}
	o.fail(page.WriteFiles(o.dir, files...))
}

// files are those that are functions of the records.
func (r *Results) files() []page.File {
	return []page.File{
		{Name: summaryFile, Write: func(w io.Writer) error {
			enc := json.NewEncoder(w)
			enc.SetIndent("", "  ")
			return enc.Encode(r.Summary())
		}},
		{Name: tableFile, Write: func(w io.Writer) error { return WriteMarkdown(w, r) }},
		{Name: reportFile, Write: func(w io.Writer) error { return WriteHTML(w, r) }},
	}
}

// close ends the records, and returns the first error that there was.
func (o *output) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.records != nil {
		if err := o.records.Close(); err != nil {
			o.fail(&page.OutputError{Err: err})
		}
		o.records = nil
	}
	return o.err
}

// ReadRecords reads a results.jsonl, for whoever computes other figures of it. A
// last line that is cut off is left out: whatever ended the run, kill -9 or a full
// disk, leaves at most that. An error names the line.
func ReadRecords(r io.Reader) ([]Record, error) {
	var records []Record
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		whole := err == nil
		if err != nil && !errors.Is(err, io.EOF) {
			return records, fmt.Errorf("line %d: %w", n, err)
		}
		var rec Record
		if len(bytes.TrimSpace(line)) > 0 {
			switch err := json.Unmarshal(line, &rec); {
			case err == nil:
				records = append(records, rec)
			case whole:
				return records, fmt.Errorf("line %d: %w", n, err)
			}
		}
		if !whole {
			return records, nil
		}
	}
}
