package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/observe"
	"kvferry/bench/report"
	"kvferry/proxy/serverinfo"
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
	Server *serverinfo.Info `json:"server,omitempty"`
	// Disturbance is what else the machine did, nil in virtual time and of a cell that
	// was not measured to its end.
	Disturbance *observe.Disturbance `json:"disturbance,omitempty"`
	// Steady is the part of the run in which the load was steady, and its figures; nil if it never was.
	Steady *report.Steady `json:"steady_state,omitempty"`
	// Attempts are all that the cell had, where it had more than one.
	Attempts []Attempt `json:"attempts,omitempty"`
	// Metrics is nil when the cluster never served.
	Metrics *client.Metrics `json:"metrics"`
	// Published is nil where nothing comparable was published.
	Published *Published      `json:"published"`
	RelErr    *client.Figures `json:"rel_err"` // (measured-published)/published
	// Faults make the cell unusable and the run a failure; Notes qualify it.
	Faults []string `json:"faults"`
	Notes  []string `json:"notes"`
	// Interrupted cells hold what was done when the run was stopped.
	Interrupted bool `json:"interrupted,omitempty"`
}

// An Attempt is one measurement of a cell that was measured again.
type Attempt struct {
	Attempt     int                  `json:"attempt"`
	MeanTTFTMS  float64              `json:"mean_ttft_ms"`
	MeanTPOTMS  float64              `json:"mean_tpot_ms"`
	Disturbance *observe.Disturbance `json:"disturbance"`
	Interrupted bool                 `json:"interrupted,omitempty"`
}

// disturbed says that the row is to be marked.
func (r *Row) disturbed() bool { return r.Disturbance.Disturbed() }

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

// A Record is what happened to one request of a cell: a line of results.jsonl.
type Record struct {
	Workload string `json:"workload"`
	Setting  string `json:"setting"`
	Repeat   int    `json:"repeat"`
	Attempt  int    `json:"attempt,omitempty"` // 0, 1, ..: of a cell that was measured again
	Clock    string `json:"clock"`             // ClockReal or ClockVirtual
	client.Record
}

// A Cell is a row with the records it was computed from.
type Cell struct {
	Row
	Records []Record
}

// Summary is summary.json.
type Summary struct {
	Rows    []Row           `json:"rows"`
	Config  RunConfig       `json:"config"`
	Machine observe.Machine `json:"machine"`
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
	Machine observe.Machine
}

// Summary is the results without their records.
func (r *Results) Summary() Summary {
	s := Summary{Rows: []Row{}, Config: r.Config, Machine: r.Machine}
	for i := range r.Cells {
		s.Rows = append(s.Rows, r.Cells[i].Row)
	}
	return s
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
