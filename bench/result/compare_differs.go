package result

import (
	"fmt"
	"math"
)

// Two runs are compared whatever they were: somebody may want to know what another rate does.
// But what differs beside the server is listed, for a reader takes a difference of figures for
// one of servers.

// compared are the options that must be alike for two runs to be the same work, with what they
// are called.
var compared = []struct{ key, name string }{
	{"clock", "clock"},
	{"model_id", "model"},
	{"dataset_name", "data set"},
	{"dataset_path", "file"},
	{"num_prompts", "requests"},
	{"request_rate", "request rate"},
	{"burstiness", "burstiness"},
	{"arrivals", "arrivals"},
	{"max_concurrency", "bound on concurrency"},
	{"random_input_len", "input length"},
	{"random_output_len", "output length"},
	{"random_range_ratio", "range of lengths"},
	{"seed", "seed"},
	{"backend", "backend"},
	{"endpoint", "endpoint"},
	{"tokenizer_id", "tokenizer"},
}

// Shares by which two runs may differ and still be the same work.
const (
	sameTokens = 0.01 // tokens a request: a server may add a token
	sameFailed = 0.01 // of the requests
	sameChunks = 0.05 // tokens a chunk
)

// differs says in words why two results are not of the same work, or not measured alike. A
// value that a file does not have is not held against it.
func differs(results []Run) []string {
	list := []string{}
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for i := range results {
		for _, doubt := range results[i].Doubts {
			say("%s: %s", letter(i), doubt)
		}
	}
	first := &results[0]
	for i := 1; i < len(results); i++ {
		r := &results[i]
		pair := letter(0) + " and " + letter(i)
		if first.Source == r.Source {
			say("%s are the same result", pair)
		}
		if (first.Tool == ToolSGLang) != (r.Tool == ToolSGLang) {
			say("%s were measured by %s and %s: %s", pair, first.Tool, r.Tool, sglangDiffers)
		}
		for _, c := range compared {
			a, b := first.Setup[c.key], r.Setup[c.key]
			if a != "" && b != "" && a != b {
				say("%s differ in %s: %s and %s", pair, c.name, a, b)
			}
		}
		for _, name := range []string{"input", "output"} {
			a, okA := first.Figures[name+"_tokens_per_request"]
			b, okB := r.Figures[name+"_tokens_per_request"]
			if okA && okB && math.Abs(a-b) > sameTokens*max(a, b) {
				say("%s did not do the same work: %.1f and %.1f %s tokens a request", pair, a, b, name)
			}
		}
		a, okA := tokensPerChunk(first)
		b, okB := tokensPerChunk(r)
		if okA && okB && math.Abs(a-b) > sameChunks*max(a, b) {
			say("%s differ in tokens a chunk, %.2f and %.2f: ITL is the time between chunks, so theirs are not of the same thing; TPOT is", pair, a, b)
		}
		a, okA = failed(first)
		b, okB = failed(r)
		if okA && okB && math.Abs(a-b) > sameFailed {
			say("%s differ in failed requests, %.1f and %.1f %%: latencies are those of what succeeded", pair, 100*a, 100*b)
		}
	}
	return list
}

// tokensPerChunk returns how many tokens a chunk brought on average after the first chunks, if the
// result lists its requests and their gaps.
func tokensPerChunk(r *Run) (mean float64, ok bool) {
	tokens, gaps := 0, 0
	for _, q := range r.Requests {
		if q.Output > 1 && len(q.ITL) > 0 {
			tokens, gaps = tokens+q.Output-1, gaps+len(q.ITL)
		}
	}
	return float64(tokens) / float64(max(gaps, 1)), gaps > 0
}

// failed is the share of a result's requests that failed, if it says.
func failed(r *Run) (share float64, ok bool) {
	bad, ok := r.Figures["failed_requests"]
	good := r.Figures["successful_requests"]
	if !ok || bad+good == 0 {
		return 0, false
	}
	return bad / (bad + good), true
}

// sglangDiffers is what SGLang's client does not define as vLLM's and kvferry do.
const sglangDiffers = "to SGLang's client the first token is the first chunk with text, to vLLM's the first chunk with choices, to kvferry the first with text, reasoning or a call of a tool; and a request ends with its last line, to the others with its last chunk with choices"
