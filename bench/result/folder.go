package result

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"kvferry/bench/client"
	"kvferry/bench/document"
	"kvferry/bench/observe"
	"kvferry/bench/stats"
	"kvferry/internal/config"
)

// SummaryFile has the figures of a folder of kvferry bench, mooncake or simulate.
const SummaryFile = "summary.json"

// rowKeys tell the rows of a summary.json apart, and the records that are theirs. A point is
// one of a search, whose records are in one file.
var rowKeys = []string{"workload", "setting", "clock", "repeat", "attempt", "point"}

// rowKey is what tells a row or a record from others of its folder. Numbers that are 0 are left
// out, as records leave them out.
func rowKey(f fields) string {
	var parts []string
	for _, key := range rowKeys {
		if v := f.text(key); v != "" && v != "0" {
			if key == "repeat" || key == "attempt" || key == "point" {
				v = key + " " + v
			}
			parts = append(parts, v)
		}
	}
	return strings.Join(parts, " ")
}

// A folder has the figures in summary.json and the requests in results.jsonl, whose lines come as
// requests end: in another order than the load's, with the requests of all rows among each
// other, and with half a line at the end where the run was killed.

// readFolder reads a folder of kvferry bench, mooncake or simulate. A row gets the records that
// have its key; one that has none is a result of figures alone.
func readFolder(dir string) ([]Run, error) {
	path := filepath.Join(dir, SummaryFile)
	text, err := readWhole(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &FormatError{File: dir, Err: errors.New("it has no summary.json, so it is no result: name a folder of kvferry bench, mooncake or simulate, or a file of results")}
	}
	if err != nil {
		return nil, err
	}
	var summary struct {
		Rows   []fields `json:"rows"`
		Config fields   `json:"config"`
		Result fields   `json:"result"` // kvferry sim's
	}
	if err := config.Unmarshal(text, &summary, false); err != nil {
		return nil, &FormatError{File: path, Err: err}
	}
	requests, err := readRecords(filepath.Join(dir, document.RecordsFile))
	if err != nil {
		return nil, err
	}
	if summary.Result != nil {
		summary.Rows = []fields{summary.Result}
	}
	if len(summary.Rows) == 0 {
		return nil, &FormatError{File: path, Key: "rows", Err: errors.New("there is none")}
	}
	var results []Run
	for i, row := range summary.Rows {
		r, err := parseRow(row, summary.Config)
		if err != nil {
			at := err.(*FormatError)
			at.File, at.Result = path, i+1
			return nil, at
		}
		r.Source, r.Key = dir, rowKey(row)
		if len(summary.Rows) > 1 {
			r.Source += " " + r.Key
		}
		switch key := r.Key; {
		case summary.Result != nil:
			r.Requests = requests[""]
		case requests[key] != nil:
			r.Requests = requests[key]
		case len(summary.Rows) == 1 && len(requests) == 1: // records of a row that does not say its clock
			for _, all := range requests {
				r.Requests = all
			}
		}
		r.derive()
		results = append(results, *r)
	}
	return results, nil
}

// parseRow reads a row of summary.json, or simulate's result: every number of its metrics under
// its own name, and the latencies of the table beside them as mean_ttft_ms and so on. What was
// run is the row's own word before the command's, since rows of one command may differ;
// simulate's stands under load.
func parseRow(row, config fields) (*Run, error) {
	r := &Run{Tool: ToolKVFerry, Setup: map[string]string{}, Figures: map[string]float64{}}
	metrics := fields{}
	if err := row.get("metrics", &metrics); err != nil {
		return nil, &FormatError{Key: "metrics", Err: err}
	}
	if row.has("latency_ms") { // simulate has its figures beside all else
		metrics = row
	}
	var load fields
	if err := row.get("load", &load); err != nil {
		return nil, &FormatError{Key: "load", Err: err}
	}
	for _, from := range []fields{config, load, row} {
		for _, key := range setupKeys {
			if text := from.text(key); text != "" {
				r.Setup[key] = text
			}
		}
	}
	for key := range metrics {
		var n number
		if json.Unmarshal(metrics[key], &n) == nil && metrics.has(key) {
			r.Figures[key] = float64(n)
		}
	}
	if n, ok := r.Figures["prompt_tokens"]; ok {
		r.Figures["total_input_tokens"] = n
	}
	if n, ok := r.Figures["output_tokens"]; ok {
		r.Figures["total_generated_tokens"] = n
	}
	if n, ok := r.Figures["requests"]; ok {
		r.Figures["successful_requests"] = n - r.Figures["failed_requests"]
	}
	var doubts struct {
		Faults      []string
		Interrupted bool
		Disturbance *observe.Disturbance
	}
	for key, into := range map[string]any{"faults": &doubts.Faults, "interrupted": &doubts.Interrupted, "disturbance": &doubts.Disturbance} {
		if err := row.get(key, into); err != nil {
			return nil, &FormatError{Key: key, Err: err}
		}
	}
	r.Doubts = doubts.Faults
	if doubts.Interrupted {
		r.Doubts = append(r.Doubts, "the run was interrupted")
	}
	if d := doubts.Disturbance; d.Disturbed() {
		r.Doubts = append(r.Doubts, "the machine was disturbed: "+d.String())
	}
	latencies := map[string]map[string]number{}
	if err := metrics.get("latency_ms", &latencies); err != nil {
		return nil, &FormatError{Key: "latency_ms", Err: err}
	}
	for name, spread := range latencies {
		for statistic, v := range spread {
			if statistic == "p50" { // simulate's word until November 2026
				statistic = "median"
			}
			if statistic != "values" {
				r.Figures[statistic+"_"+name+"_ms"] = float64(v)
			}
		}
	}
	return r, nil
}

// setupKeys are the options that say what was run, in summary.json. Runs that differ in one of them
// were not asked the same, which is said beside their figures.
var setupKeys = []string{
	"clock", "backend", "endpoint", "model_id", "tokenizer_id", "dataset_name", "dataset_path", "num_prompts", "requests", "seed",
	"request_rate", "burstiness", "max_concurrency", "random_input_len", "random_output_len", "random_range_ratio", "workload",
	"arrivals", "trace", "speed", "kind", "lora_assignment",
}

// readRecords reads results.jsonl, by the row that its records are of. A last line that is cut
// off is left out: whatever ended the run leaves at most that. Without the file there are
// none.
func readRecords(path string) (map[string][]Request, error) {
	text, err := readWhole(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	type indexed struct {
		index int
		Request
	}
	all := map[string][]indexed{}
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var f fields
		index, q, good, err := 0, Request{}, false, config.Unmarshal(line, &f, false)
		if err == nil {
			index, q, good, err = parseRecord(f, line)
		}
		if err != nil {
			if i == len(lines)-1 {
				break
			}
			return nil, &FormatError{File: path, Err: fmt.Errorf("line %d: %w", i+1, err)}
		}
		if good {
			key := rowKey(f)
			all[key] = append(all[key], indexed{index, q})
		}
	}
	requests := map[string][]Request{}
	for key, list := range all {
		slices.SortStableFunc(list, func(a, b indexed) int { return cmp.Compare(a.index, b.index) }) // they came as they ended
		for _, q := range list {
			requests[key] = append(requests[key], q.Request)
		}
	}
	return requests, nil
}

// parseRecord reads a line: a client.Record, or simulate's shorter one, which alone says when its
// request arrived. good is
// whether it counts: the request was answered.
func parseRecord(f fields, line []byte) (index int, q Request, good bool, err error) {
	if f.has("arrived") {
		var s struct {
			Index   int
			Prompt  int `json:"prompt_tokens"`
			Output  int `json:"output_tokens"`
			Arrived float64
			First   float64 `json:"first_token"`
			Finish  float64
		}
		if err := config.Unmarshal(line, &s, false); err != nil {
			return 0, Request{}, false, err
		}
		q := Request{TTFT: s.First - s.Arrived, E2EL: s.Finish - s.Arrived, TPOT: nan, Prompt: s.Prompt, Output: s.Output}
		if v, ok := stats.TPOT(s.First, s.Finish, s.Output); ok {
			q.TPOT = v
		}
		return s.Index, q, s.Output > 0, nil
	}
	var r client.Record
	if err := config.Unmarshal(line, &r, false); err != nil {
		return 0, Request{}, false, err
	}
	if r.Skipped || r.Failure() != "" {
		return r.Index, Request{}, false, nil
	}
	q = Request{TTFT: r.TTFT(), E2EL: r.E2EL(), TPOT: nan, ITL: slices.Collect(r.ITL()), Prompt: r.Input(), Output: r.Output()}
	if v, ok := r.TPOT(); ok {
		q.TPOT = v
	}
	return r.Index, q, true, nil
}
