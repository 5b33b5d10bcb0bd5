package matrix

import (
	"errors"
	"io/fs"
	"path/filepath"

	"kvferry/bench/result"
)

// Figures are what a client reports of a run, by its own definitions, under the names of
// report.Metrics. Those that it does not report are not there.
type Figures struct {
	Source string             `json:"source"` // the file that they are from, in the pair's folder
	Tool   string             `json:"tool"`   // whose definitions they have: one of report's Tools
	Values map[string]float64 `json:"values"`
}

// A figure is a column of the table: its name in Figures, its head there, its digits.
type figure struct {
	key, head string
	digits    int
}

// columns are in the order of vLLM's and SGLang's reports.
var columns = []figure{
	{"successful_requests", "ok", 0},
	{"failed_requests", "failed", 0},
	{"duration_s", "duration s", 2},
	{"total_input_tokens", "tokens in", 0},
	{"total_generated_tokens", "tokens out", 0},
	{"request_throughput", "req/s", 2},
	{"output_token_throughput", "out tok/s", 1},
	{"mean_ttft_ms", "mean TTFT ms", 1},
	{"p99_ttft_ms", "P99 TTFT ms", 1},
	{"mean_tpot_ms", "mean TPOT ms", 2},
	{"mean_itl_ms", "mean ITL ms", 2},
	{"p99_itl_ms", "P99 ITL ms", 2},
	{"mean_e2el_ms", "mean E2E ms", 1},
}

// ReadFigures looks through a pair's folder for what its client has reported: in its result
// folder the folders of kvferry bench, else result files of vLLM and SGLang, else their reports
// on its standard output. A client may have reported several runs. Files of other things are
// left alone, and none with figures is no error.
func ReadFigures(folder string) ([]Figures, error) {
	var summaries, others []string
	err := filepath.WalkDir(filepath.Join(folder, resultFolder), func(path string, d fs.DirEntry, err error) error {
		switch ext := filepath.Ext(path); {
		case err != nil || d.IsDir():
			return err
		case filepath.Base(path) == result.SummaryFile:
			summaries = append(summaries, path)
		case ext == ".json" || ext == ".jsonl":
			others = append(others, path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, files := range [][]string{summaries, others, {filepath.Join(folder, stdoutFile)}} {
		var all []Figures
		for _, path := range files {
			found, err := result.Read(path)
			var other *result.FormatError
			if err != nil && !errors.As(err, &other) && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, r := range found {
				if len(r.Figures) == 0 {
					continue // a row that was never measured
				}
				f := Figures{Source: path, Tool: r.Tool, Values: r.Figures}
				if source, err := filepath.Rel(folder, path); err == nil {
					f.Source = source
				}
				all = append(all, f)
			}
		}
		if len(all) > 0 {
			return all, nil
		}
	}
	return nil, nil
}
