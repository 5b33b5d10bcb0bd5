package matrix

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Figures are what a client reports of a run, by its own definitions, under the names that
// summary.json of kvbench serve has. Those that it does not report are not there.
type Figures struct {
	Source string             `json:"source"` // the file that they are from, in the pair's folder
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

// aliases are the names that others have for the same: keys of vLLM's and SGLang's result
// files, and labels of their text reports, what stands before the colon.
var aliases = map[string]string{
	"completed": "successful_requests", "failed": "failed_requests", "duration": "duration_s",
	"total_output_tokens": "total_generated_tokens", "output_throughput": "output_token_throughput",
	"mean_e2e_latency_ms": "mean_e2el_ms",

	"Successful requests": "successful_requests", "Failed requests": "failed_requests", "Benchmark duration (s)": "duration_s",
	"Total input tokens": "total_input_tokens", "Total generated tokens": "total_generated_tokens",
	"Request throughput (req/s)": "request_throughput", "Output token throughput (tok/s)": "output_token_throughput",
	"Mean TTFT (ms)": "mean_ttft_ms", "P99 TTFT (ms)": "p99_ttft_ms", "Mean TPOT (ms)": "mean_tpot_ms",
	"Mean ITL (ms)": "mean_itl_ms", "P99 ITL (ms)": "p99_itl_ms",
	"Mean E2EL (ms)": "mean_e2el_ms", "Mean E2E Latency (ms)": "mean_e2el_ms",
}

// ReadFigures looks through a pair's folder for what its client has reported: in its result
// folder the summary.json of kvbench serve, else result files of vLLM and SGLang, else the text
// report on its standard output. A client may have reported several runs. None is no error.
func ReadFigures(folder string) ([]Figures, error) {
	var summaries, others []Figures
	err := filepath.WalkDir(filepath.Join(folder, resultFolder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		source, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		switch ext := filepath.Ext(path); {
		case filepath.Base(path) == "summary.json":
			found, err := readSummary(path, source)
			summaries = append(summaries, found...)
			return err
		case ext == ".json" || ext == ".jsonl":
			found, err := readResults(path, source)
			others = append(others, found...)
			return err
		}
		return nil
	})
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(summaries) > 0:
		return summaries, nil
	case len(others) > 0:
		return others, nil
	}
	f, err := os.Open(filepath.Join(folder, stdoutFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readReport(f, stdoutFile)
}

// readSummary reads the rows of a summary.json of kvbench.
func readSummary(path, source string) ([]Figures, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var summary struct {
		Rows []struct {
			Metrics map[string]any `json:"metrics"`
		} `json:"rows"`
	}
	if json.Unmarshal(text, &summary) != nil {
		return nil, nil // of something else
	}
	var all []Figures
	for _, row := range summary.Rows {
		all = add(all, source, row.Metrics)
	}
	return all, nil
}

// bare are numbers that Python writes and JSON does not have, where a value stands.
var bare = regexp.MustCompile(`([:\[,]\s*)(-?Infinity|NaN)`)

// longestResult bounds a result file that is looked at; one with every request of a long run
// may be larger than what is worth reading for a dozen figures.
const longestResult = 256 << 20

// readResults reads a result file of vLLM, one JSON object, or of SGLang, one a line. Files of
// other things have no figures.
func readResults(path, source string) ([]Figures, error) {
	info, err := os.Stat(path)
	if err != nil || info.Size() > longestResult {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Figures
	in := json.NewDecoder(strings.NewReader(bare.ReplaceAllString(string(text), "${1}null")))
	for {
		var object map[string]any
		if in.Decode(&object) != nil {
			return all, nil // the end, or something else
		}
		if _, ok := object["completed"]; ok && object["duration"] != nil {
			all = add(all, source, object)
		}
	}
}

// reportHead is in the first line of vLLM's and SGLang's text reports.
const reportHead = " Serving Benchmark Result "

// readReport reads text reports, by what stands before the colon and not by line: the layouts
// of both tools have changed between versions, the labels have not.
func readReport(r io.Reader, source string) ([]Figures, error) {
	var all []Figures
	var now map[string]any
	in := bufio.NewScanner(r)
	in.Buffer(nil, longestLine)
	for in.Scan() {
		if strings.Contains(in.Text(), reportHead) {
			all = add(all, source, now)
			now = map[string]any{}
		}
		label, value, ok := strings.Cut(in.Text(), ":")
		if now == nil || !ok {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
			now[strings.TrimSpace(label)] = v
		}
	}
	if err := in.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return all, err
	}
	return add(all, source, now), nil
}

// add adds what of values there is a column for.
func add(all []Figures, source string, values map[string]any) []Figures {
	f := Figures{Source: source, Values: map[string]float64{}}
	for key, value := range values {
		if other, ok := aliases[key]; ok {
			key = other
		}
		v, ok := value.(float64)
		if ok && slices.ContainsFunc(columns, func(c figure) bool { return c.key == key }) {
			f.Values[key] = v
		}
	}
	if len(f.Values) == 0 {
		return all
	}
	return append(all, f)
}
