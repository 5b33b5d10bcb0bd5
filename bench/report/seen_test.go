package report

import (
	"math"
	"slices"
	"testing"
	"time"

	"kvferry/bench/client"
)

// nearly compares lists of seconds.
func nearly(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(x, y float64) bool { return math.Abs(x-y) < 1e-9 })
}

// TestSGLangGaps: on /generate a chunk without a new token is skipped, and its time is that of
// the next, which shares all of it among its tokens; elsewhere a chunk is a gap.
func TestSGLangGaps(t *testing.T) {
	r := answered(0, 1, 1.1, 1.4, 1.5)
	r.ChunkTokens = []int{2, 0, 2, 1}
	if got, want := sglangGaps(&r, true), []float64{0.2, 0.2, 0.1}; !nearly(got, want) {
		t.Errorf("/generate: %v, want %v", got, want)
	}
	if got, want := sglangGaps(&r, false), []float64{0.1, 0.3, 0.1}; !nearly(got, want) {
		t.Errorf("completions: %v, want %v", got, want)
	}
}

// TestSGLangOutput: where the chunks do not say how many tokens they brought, SGLang's client
// takes the request to have had what it asked for.
func TestSGLangOutput(t *testing.T) {
	r := answered(0, 1, 1.1)
	r.MaxTokens = 9
	for backend, want := range map[string]int{"sglang-oai": 9, "sglang": 2} {
		if got := sglangSeen(&r, backend); got.output != want {
			t.Errorf("%s: %d tokens, want %d", backend, got.output, want)
		}
	}
	r.ChunkTokens = []int{1, 1} // usage on each chunk
	if got := sglangSeen(&r, "sglang-oai"); got.output != 2 {
		t.Errorf("with usage on chunks: %d tokens", got.output)
	}
	r.FirstText = 0 // no chunk had text
	if got := sglangSeen(&r, "sglang"); got.output != 9 || got.ttft != 0 {
		t.Errorf("without text: %d tokens, TTFT %g", got.output, got.ttft)
	}
}

// TestVLLMOutput: what nobody counted is one token to vLLM's client, or what its tokenizer says.
func TestVLLMOutput(t *testing.T) {
	r := answered(0, 1, 1.1)
	r.OutputTokens, r.Usage, r.CountedBy, r.Retokenized = 0, nil, "", 5
	for tokenizer, want := range map[bool]int{false: 1, true: 5} {
		if got := vllmSeen(&r, tokenizer); !got.ok || got.output != want {
			t.Errorf("with a tokenizer %v: %d tokens, want %d", tokenizer, got.output, want)
		}
	}
}

// TestPerToken: where the server does not say how many tokens a chunk brought, all have the
// same share, and what is left of a token goes to the next.
func TestPerToken(t *testing.T) {
	r := answered(0, 1, 1.3, 1.5, 1.8, 1.9)
	r.OutputTokens, r.Usage = 6, &client.Usage{CompletionTokens: 6} // 1.2 a chunk
	r.NoText = []int{4}                                             // and so 1.5 of those with text
	if got, want := perToken(&r), []float64{0.3, 0.1, 0.1, 0.3}; !nearly(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestRateChanges: a ramp that rises by several requests a second from one request to the next
// has an event for each, as vLLM writes them.
func TestRateChanges(t *testing.T) {
	r := &Run{Setup: Setup{Started: started, RampUp: &RampUp{Strategy: "linear", Start: 1, End: 5}}}
	for i := range 3 {
		rec := answered(float64(i), float64(i)+0.1)
		r.Records = append(r.Records, rec)
	}
	var got []int
	for _, e := range NewVLLM(r).rateChanges() {
		got = append(got, e.RPS)
		if at, err := time.Parse("2006-01-02T15:04:05.000000", e.Timestamp); err != nil || at.Before(started) {
			t.Errorf("%s, %v", e.Timestamp, err)
		}
	}
	if want := []int{1, 2, 3, 4, 5}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
