package result

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Printed reports are read by what stands before the colon, and never by the number of a line:
// from 2024 to 2026 both tools renamed lines, added some and left some out, and what a terminal
// or a log keeps of the padding differs.

// resultHeading begins a report of either tool, of any version.
const resultHeading = " Serving Benchmark Result "

// textFigures are the figures of a report by what stands before the colon, without units and
// in lower case. Versions differ in letters' case and in which lines there are.
var textFigures = map[string]string{
	"successful requests": "successful_requests", "failed requests": "failed_requests", "benchmark duration": "duration_s",
	"total input tokens": "total_input_tokens", "total generated tokens": "total_generated_tokens",
	"request throughput": "request_throughput", "request goodput": "request_goodput", "input token throughput": "input_token_throughput",
	"output token throughput": "output_token_throughput", "total token throughput": "total_token_throughput", "total throughput": "total_token_throughput",
	"peak output token throughput": "max_output_tokens_per_s", "peak concurrent requests": "max_concurrent_requests", "concurrency": "concurrency",
}

// textSetup are what was run, the same way.
var textSetup = map[string]string{
	"backend": "backend", "traffic request rate": "request_rate", "request rate configured": "request_rate",
	"max request concurrency": "max_concurrency", "maximum request concurrency": "max_concurrency",
}

// latencyLine is a line such as "P99 TTFT", "Mean E2E Latency", "Median E2EL".
var latencyLine = regexp.MustCompile(`^(mean|median|max|p[0-9.]+) (ttft|tpot|itl|e2el|e2e latency)$`)

// unit is what stands in parentheses at a label's end, but for what makes it another figure.
var unit = regexp.MustCompile(` \((ms|s|req/s|tok/s|rps)\)$`)

// namespaceField is a field of Python's Namespace(...).
var namespaceField = regexp.MustCompile(`([a-z_]+)=('(?:[^'\\]|\\.)*'|[^,()\[\]]+)`)

// namespaceSetup are the options of a Namespace line that say what was run.
var namespaceSetup = map[string]string{
	"model": "model_id", "num_prompts": "num_prompts", "seed": "seed", "dataset_name": "dataset_name", "burstiness": "burstiness",
	"random_input_len": "random_input_len", "random_output_len": "random_output_len", "random_range_ratio": "random_range_ratio",
}

// parseText reads the reports in a text: a terminal's, or one of a program that ran several.
// Outside of a report it looks for a heading, and for a Namespace(...), which both tools print
// before a run and which says what was run; inside, each line is a figure or is passed over,
// until a line of equals signs.
func parseText(name string, text []byte) ([]Run, error) {
	var results []Run
	var r *Run // in a report
	options := map[string]string{}
	in := bufio.NewScanner(bytes.NewReader(text))
	in.Buffer(nil, maxFile)
	for in.Scan() {
		line := strings.TrimRight(in.Text(), " \r")
		switch {
		case strings.Contains(line, resultHeading) && strings.HasPrefix(line, "="):
			r = &Run{Tool: ToolVLLM, Setup: map[string]string{}, Figures: map[string]float64{}}
			for key, value := range options {
				r.Setup[key] = value
			}
		case r == nil:
			if strings.Contains(line, "Namespace(") {
				options = namespace(line)
			}
		case strings.Trim(line, "=") == "" && len(line) > 0:
			if len(r.Figures) > 0 {
				r.derive()
				results = append(results, *r)
			}
			r = nil
		default:
			r.textLine(line)
		}
	}
	if err := in.Err(); err != nil {
		return nil, &FormatError{File: name, Err: err}
	}
	if r != nil && len(r.Figures) > 0 { // the text was cut off
		r.derive()
		results = append(results, *r)
	}
	if len(results) == 0 {
		return nil, &FormatError{File: name, Err: errors.New("there is no result in it: neither JSON of vLLM or SGLang, nor a report with the heading \"Serving Benchmark Result\"")}
	}
	for i := range results {
		results[i].Source = name
		if len(results) > 1 {
			results[i].Source = fmt.Sprintf("%s #%d", name, i+1)
		}
	}
	return results, nil
}

// namespace is what a Namespace(...) line says was run, under our names. Python's None is an option
// that was not given.
func namespace(line string) map[string]string {
	options := map[string]string{}
	for _, m := range namespaceField.FindAllStringSubmatch(line, -1) {
		if ours, ok := namespaceSetup[m[1]]; ok && m[2] != "None" {
			options[ours] = strings.Trim(strings.TrimSpace(m[2]), "'")
		}
	}
	return options
}

// textLine reads a line of a report; one that says nothing we know is passed over. The headings of
// the two tools' reports are alike: a report is SGLang's once it has a line that only SGLang's has.
func (r *Run) textLine(line string) {
	label, value, ok := strings.Cut(line, ":")
	if !ok {
		return
	}
	label = strings.ToLower(strings.TrimSpace(label))
	value = strings.TrimSpace(value)
	label = unit.ReplaceAllString(label, "")
	if ours, ok := textSetup[label]; ok {
		if label == "backend" || label == "traffic request rate" {
			r.Tool = ToolSGLang // vLLM prints neither
		}
		if value != "not set" {
			r.Setup[ours] = plainNumber(value)
		}
		return
	}
	key := textFigures[label]
	if m := latencyLine.FindStringSubmatch(label); m != nil {
		name := m[2]
		if name == "e2e latency" {
			name, r.Tool = nameE2EL, ToolSGLang
		}
		key = m[1] + "_" + name + "_ms"
	}
	v, err := strconv.ParseFloat(value, 64)
	if key != "" && err == nil {
		r.Figures[key] = v
	}
}

// plainNumber is a number in the fewest digits, so that 4.0 and 4 are one.
func plainNumber(text string) string {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return numberText(v)
	}
	return text
}
