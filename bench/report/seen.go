package report

import (
	"cmp"
	"slices"

	"kvferry/bench/client"
	"kvferry/bench/stats"
)

// seen is a request as a tool's client keeps it: the fields of RequestFuncOutput, which both
// tools have, in seconds.
type seen struct {
	ok      bool
	start   float64          // when it was sent
	ttft    float64          // 0 if no token came
	latency float64          // 0 of one that failed
	itl     func() []float64 // gaps between tokens, made anew: of all requests they are the most of a run's memory
	queue   float64          // from its arrival to its sending
	prompt  int              // tokens
	output  int              // tokens; 0 of one that failed
	retoken int              // tokens of its text, as the client's tokenizer has it
	asked   int              // prompt tokens, as the data set has them
	text    string
	err     string
}

// tpot is (latency - TTFT) / (output tokens - 1), as both tools have it; none of a single
// token.
func (s *seen) tpot() (seconds float64, ok bool) {
	return stats.TPOT(s.ttft, s.latency, s.output)
}

// common is what both tools keep alike.
func common(r *client.Record) seen {
	s := seen{
		start: r.Sent, queue: r.Sent - r.Intended, prompt: r.Input(), asked: r.PromptTokens,
		text: r.Text, err: r.Error, itl: func() []float64 { return vllmGaps(r) },
	}
	s.asked = cmp.Or(s.asked, s.prompt)
	return s
}

// vllmGaps are the gaps between all chunks with choices, whatever they brought.
func vllmGaps(r *client.Record) []float64 {
	itl := make([]float64, 0, max(len(r.TokenTimes)-1, 0))
	for i := 1; i < len(r.TokenTimes); i++ {
		itl = append(itl, r.TokenTimes[i]-r.TokenTimes[i-1])
	}
	return itl
}

// simulated is a record of virtual time: there was no HTTP, and what succeeds is the same to
// everybody.
func simulated(r *client.Record) bool { return r.HTTPStatus == 0 && r.Status == client.StatusOK }

// vllmSeen is a request of vLLM's client (async_request_openai_completions and _chat_
// completions of vllm/benchmarks/lib/endpoint_request_func.py, 0.32.0): a chunk is one with
// choices, whatever its text; TTFT is to the first, latency to the last. The output's length
// is the usage's, else the tokenizer's. Where neither counted, it takes a request for one
// token, and we the chunks for tokens, which the report says.
func vllmSeen(r *client.Record, tokenizer bool) seen {
	s := common(r)
	s.ok = r.VLLMCounts() && !r.BrokeOff() || simulated(r) && len(r.TokenTimes) > 0
	if r.Content != nil { // its client leaves reasoning out
		s.text = *r.Content
	}
	if n := len(r.TokenTimes); n > 0 {
		s.ttft = r.TokenTimes[0] - r.Sent
		if s.ok {
			s.latency, s.err = r.TokenTimes[n-1]-r.Sent, ""
		}
	}
	switch n := r.Output(); {
	case !s.ok:
		s.text = "" // kept at an answer's end only
	case n > 0:
		s.output = n
	case tokenizer:
		s.output = r.Retokenized
	default:
		s.output = 1
	}
	return s
}

// gapCount is how many gaps there are between chunks: room for as many, made at once, is not
// moved as it grows.
func gapCount(records []client.Record) (n int) {
	for i := range records {
		n += max(len(records[i].TokenTimes)-1, 0)
	}
	return n
}

// Backends of SGLang's client that differ in what they keep.
const (
	sglangGenerate = "sglang" // POST /generate
	sglangNative   = "sglang-native"
)

// sglangSeen is a request of SGLang's client (async_request_openai_completions, _chat_
// completions and async_request_sglang_generate of sglang/benchmark/serving.py, 0.5.23):
//
//   - A token is a chunk with text. TTFT is to the first and 0 if none came; latency is to
//     the last line that was not blank.
//   - Status 200 without an exception is a success, even without a token.
//   - On /generate a chunk that brought n tokens is n gaps of an n-th each, and one that
//     brought none is skipped: its time is that of the next. Elsewhere a chunk is one gap.
//   - The output's length is the server's if it stands in the chunks. If not it is what was
//     asked for, however little came: the client asks for no usage.
func sglangSeen(r *client.Record, backend string) seen {
	s := common(r)
	generate := backend == sglangGenerate || backend == sglangNative
	s.ok = r.SGLangCounts(backend) && !r.BrokeOff() || simulated(r)
	if r.FirstText > 0 {
		s.ttft = r.FirstText - r.Sent
	}
	s.itl = func() []float64 { return sglangGaps(r, generate) }
	if !s.ok {
		s.text = "" // kept at an answer's end only
		return s
	}
	s.err = ""
	s.latency = lastLine(r) - r.Sent
	s.retoken = r.Retokenized
	switch counted := r.ChunkTokens != nil || generate; {
	case counted && r.FirstText > 0:
		s.output = r.Output()
	default:
		s.output = r.MaxTokens
	}
	return s
}

// lastLine is when the stream's last line came that was not blank. A record of virtual time
// has no lines: its last token is the last thing that came.
func lastLine(r *client.Record) float64 {
	switch {
	case r.LastLine > 0:
		return r.LastLine
	case len(r.TokenTimes) > 0:
		return r.TokenTimes[len(r.TokenTimes)-1]
	}
	return r.Finish
}

// sglangGaps are the gaps between chunks with text.
func sglangGaps(r *client.Record, generate bool) []float64 {
	itl := []float64{}
	last, skip := 0.0, r.NoText
	for i, at := range r.TokenTimes {
		if len(skip) > 0 && skip[0] == i {
			skip = skip[1:]
			continue
		}
		tokens := 1
		if generate && i < len(r.ChunkTokens) {
			tokens = r.ChunkTokens[i]
		}
		switch {
		case last == 0: // the first has no gap, however many tokens it brought
		case tokens == 0:
			continue
		default:
			itl = append(itl, slices.Repeat([]float64{(at - last) / float64(tokens)}, tokens)...)
		}
		last = at
	}
	return itl
}
