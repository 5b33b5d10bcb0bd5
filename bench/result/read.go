package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"kvferry/internal/config"
)

// maxFile is more than the lists of a million requests take in JSON. Bytes: a file is read whole.
const maxFile = 2 << 30

// Read reads the results of a file or a folder:
//
//   - a folder of kvferry: summary.json and, where it is there, results.jsonl;
//   - vLLM's --save-result, one object, or one a line after --append-result;
//   - SGLang's --output-file, an object a line;
//   - a text with reports as either tool prints them, of any version.
//
// Errors are FormatErrors, or unwrap to the system's.
func Read(path string) ([]Run, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, config.FileError(path, err)
	}
	if info.IsDir() {
		return readFolder(path)
	}
	if filepath.Base(path) == SummaryFile {
		return readFolder(filepath.Dir(path))
	}
	text, err := readWhole(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// readWhole reads a file that is not larger than a result.
func readWhole(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, config.FileError(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, &FormatError{File: path, Err: fmt.Errorf("it is larger than %d GiB, and no result", maxFile>>30)}
	}
	return text, nil
}

// Parse reads the results of a file of vLLM or SGLang: JSON or text. The name is for errors.
func Parse(name string, text []byte) ([]Run, error) {
	trimmed := bytes.TrimSpace(text)
	if len(trimmed) == 0 {
		return nil, &FormatError{File: name, Err: errors.New("it is empty")}
	}
	// A log may begin with a bracket too: "[transformers] PyTorch was not found" is the first
	// line of SGLang's client.
	if c := trimmed[0]; c != '{' && (c != '[' || bytes.Contains(trimmed, []byte(resultHeading))) {
		return parseText(name, text)
	}
	var results []Run
	in := json.NewDecoder(bytes.NewReader(quoted(trimmed)))
	for n := 1; ; n++ {
		var object json.RawMessage
		err := in.Decode(&object)
		switch {
		case errors.Is(err, io.EOF):
			return results, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			err = errors.New("it ends in the middle: is it cut off?")
		case err != nil:
			err = fmt.Errorf("this is no JSON: %w", err)
		}
		var f fields
		if err == nil {
			err = config.Unmarshal(object, &f, false)
		}
		if err != nil {
			return nil, &FormatError{File: name, Result: n, Err: err}
		}
		r, err := parseObject(f)
		if err != nil {
			var at *FormatError
			if !errors.As(err, &at) {
				at = &FormatError{Err: err}
			}
			at.File, at.Result = name, n
			return nil, at
		}
		r.Source = name
		if n > 1 || in.More() {
			r.Source = fmt.Sprintf("%s #%d", name, n)
		}
		r.derive()
		results = append(results, *r)
	}
}

// parseObject reads a result of either tool, which it tells by its keys: neither writes its name
// into the file.
func parseObject(f fields) (*Run, error) {
	switch {
	case f.has("mean_e2e_latency_ms") || f.has("dataset_name") && f.has("total_throughput"):
		return parseSGLang(f)
	case f.has("total_token_throughput") || f.has("endpoint_type"):
		return parseVLLM(f)
	case f.has("rows"):
		return nil, errors.New("it is a summary.json of kvferry under another name: name its folder")
	}
	return nil, errors.New("it is no result: it has neither total_token_throughput, as vLLM's have, nor mean_e2e_latency_ms, as SGLang's have")
}

// at is an error of a key. Parse adds the file and which of its results.
func at(key string, err error) error { return &FormatError{Key: key, Err: err} }

// copyFigures copies numbers under our names; a figure that is no number is an error. A key that is
// there and null is what the tool did not compute, and left out.
func (r *Run) copyFigures(f fields) error {
	for theirs := range f {
		ours := toolFigures[theirs]
		if m := latencyKey.FindStringSubmatch(theirs); m != nil {
			ours = m[1] + "_" + strings.Replace(m[2], "e2e_latency", nameE2EL, 1) + "_ms"
		}
		if ours == "" || !f.has(theirs) {
			continue
		}
		var n number
		if err := f.get(theirs, &n); err != nil {
			return at(theirs, err)
		}
		r.Figures[ours] = float64(n)
	}
	return nil
}

// copySetup copies what was run under our names.
func (r *Run) copySetup(f fields, names map[string]string) {
	for theirs, ours := range names {
		if text := f.text(theirs); text != "" {
			r.Setup[ours] = text
		}
	}
}

// The lists of a file are the only thing from which a difference gets an interval (package
// compare), and a list that is one request short would set everybody's TTFT beside a neighbour's
// gaps. So they are refused, and not cut to the shortest.

// lists are a tool's lists of requests, which must be of one length.
type lists struct {
	input, output []int
	ttft, latency []float64
	itl           [][]float64
	errors        []string
	n             int // requests; -1 where there is no list
}

// read reads the lists that are there. Times are seconds in both tools' lists, and an error names
// the list and the request.
func (l *lists) read(f fields) error {
	l.n = -1
	for _, k := range []struct {
		key    string
		into   any
		length func() int
	}{
		{"input_lens", &l.input, func() int { return len(l.input) }},
		{"output_lens", &l.output, func() int { return len(l.output) }},
		{"ttfts", &l.ttft, func() int { return len(l.ttft) }},
		{"itls", &l.itl, func() int { return len(l.itl) }},
		{"latencies", &l.latency, func() int { return len(l.latency) }},
		{"errors", &l.errors, func() int { return len(l.errors) }},
	} {
		if !f.has(k.key) {
			continue
		}
		if err := f.get(k.key, k.into); err != nil {
			return at(k.key, err)
		}
		if l.n >= 0 && k.length() != l.n {
			return at(k.key, fmt.Errorf("%d requests, and %d in the lists before it", k.length(), l.n))
		}
		l.n = k.length()
	}
	for i, v := range l.ttft {
		if err := finite(v); err != nil {
			return at("ttfts", fmt.Errorf("request %d: %w", i, err))
		}
	}
	for i, v := range l.latency {
		if err := finite(v); err != nil {
			return at("latencies", fmt.Errorf("request %d: %w", i, err))
		}
	}
	for i, gaps := range l.itl {
		for _, v := range gaps {
			if err := finite(v); err != nil {
				return at("itls", fmt.Errorf("request %d: %w", i, err))
			}
		}
	}
	return nil
}

// request is the i-th, without its latencies.
func (l *lists) request(i int) Request {
	q := Request{TTFT: nan, TPOT: nan, E2EL: nan, Prompt: -1, Output: -1}
	if l.input != nil {
		q.Prompt = l.input[i]
	}
	if l.output != nil {
		q.Output = l.output[i]
	}
	if l.ttft != nil {
		q.TTFT = l.ttft[i]
	}
	if l.itl != nil {
		q.ITL = l.itl[i]
	}
	return q
}
