package result

import (
	"math"
	"regexp"
)

var nan = math.NaN()

// What both tools write is read by tables of names: theirs, and ours for the same thing. A key
// that is in no table is passed over, so that a newer version's file is read as far as it is
// understood.

// toolFigures are figures that are alike in both tools' results, and what they are here.
var toolFigures = map[string]string{
	"duration": "duration_s", "completed": "successful_requests", "failed": "failed_requests",
	"total_input_tokens": "total_input_tokens", "total_output_tokens": "total_generated_tokens",
	"request_throughput": "request_throughput", "request_goodput": "request_goodput", "input_throughput": "input_token_throughput",
	"output_throughput": "output_token_throughput", "total_token_throughput": "total_token_throughput", "total_throughput": "total_token_throughput",
	"max_output_tokens_per_s": "max_output_tokens_per_s", "max_concurrent_requests": "max_concurrent_requests",
	"concurrency": "concurrency", "slo_attainment": "slo_attainment",
}

// latencyKey is a key such as p99.9_ttft_ms or mean_e2e_latency_ms.
var latencyKey = regexp.MustCompile(`^(mean|median|std|max|p[0-9.]+)_(ttft|tpot|itl|e2el|e2e_latency)_ms$`)

// What was run, by the tools' keys.
var (
	vllmSetup = map[string]string{
		"backend": "backend", "model_id": "model_id", "tokenizer_id": "tokenizer_id", "num_prompts": "num_prompts",
		"request_rate": "request_rate", "burstiness": "burstiness", "max_concurrency": "max_concurrency", "label": "result_label",
		"ramp_up_strategy": "ramp_up_strategy", "ramp_up_start_rps": "ramp_up_start_rps", "ramp_up_end_rps": "ramp_up_end_rps",
	}
	sglangSetup = map[string]string{
		"backend": "backend", "dataset_name": "dataset_name", "request_rate": "request_rate", "max_concurrency": "max_concurrency", "tag": "tag",
		"random_input_len": "random_input_len", "random_output_len": "random_output_len", "random_range_ratio": "random_range_ratio",
	}
)

// parseTool reads what both tools' objects have: the setup by the tool's keys, the figures, and
// the lists of the requests, which a Run has still to be made of.
func parseTool(tool string, setup map[string]string, f fields) (*Run, lists, error) {
	r := &Run{Tool: tool, Setup: map[string]string{}, Figures: map[string]float64{}}
	r.copySetup(f, setup)
	if err := r.copyFigures(f); err != nil {
		return nil, lists{}, err
	}
	var l lists
	err := l.read(f)
	return r, l, err
}

// parseVLLM reads vLLM's object (main_async of vllm/benchmarks/serve.py writes it; keys of
// versions from 2024 on are among these). Its lists are in seconds, its figures in milliseconds.
// A request's TPOT is not in the file; it is (latency - TTFT) / (output tokens - 1), as the tool
// computes it. Without --save-detailed it has the latencies of requests and
// not their TTFTs.
func parseVLLM(f fields) (*Run, error) {
	r, l, err := parseTool(ToolVLLM, vllmSetup, f)
	if err != nil {
		return nil, err
	}
	for i := range max(l.n, 0) {
		// A request that failed has no latency, whether or not there is a list of errors.
		if l.errors != nil && l.errors[i] != "" || l.latency != nil && l.latency[i] == 0 {
			continue
		}
		q := l.request(i)
		if l.latency != nil {
			q.E2EL = l.latency[i]
			if q.Output > 1 && !math.IsNaN(q.TTFT) {
				q.TPOT = (q.E2EL - q.TTFT) / float64(q.Output-1)
			}
		}
		r.Requests = append(r.Requests, q)
	}
	return r, nil
}

// parseSGLang reads SGLang's object (benchmark of sglang/benchmark/serving.py). A request that
// failed has an error, and an output of 0 tokens in the tool's list. With --output-details it has the requests' TTFTs and
// gaps; their latencies it never has, and so no TPOT of a request.
func parseSGLang(f fields) (*Run, error) {
	r, l, err := parseTool(ToolSGLang, sglangSetup, f)
	if err != nil {
		return nil, err
	}
	for i := range max(l.n, 0) {
		if l.errors != nil && l.errors[i] != "" || l.output != nil && l.output[i] == 0 {
			continue
		}
		r.Requests = append(r.Requests, l.request(i))
	}
	if l.errors != nil { // the tool counts what succeeded alone
		r.Figures["failed_requests"] = float64(l.n - len(r.Requests))
	}
	return r, nil
}
