package client

import "testing"

// TestTimings: what servers say of their time, in the answers of llama.cpp's server, at the
// end or in every chunk, and of SGLang's /generate.
func TestTimings(t *testing.T) {
	for name, c := range map[string]struct {
		kind   kind
		pieces []string
		want   Timings
	}{
		"llama.cpp": {
			kind: chat, pieces: []string{
				`{"choices":[{"delta":{"content":"a"}}]}`,
				`{"choices":[{"delta":{},"finish_reason":"length"}],"timings":{"cache_n":0,"prompt_n":11,"prompt_ms":50.5,"prompt_per_second":217.8,"predicted_n":1,"predicted_ms":100,"predicted_per_second":10}}`,
			},
			want: Timings{Prefill: 0.0505, Decode: 0.1},
		},
		"llama.cpp with timings_per_token": {
			kind: chat, pieces: []string{
				`{"choices":[{"delta":{"content":"a"}}],"timings":{"prompt_ms":50,"predicted_ms":10}}`,
				`{"choices":[{"delta":{"content":"b"}}],"timings":{"prompt_ms":50,"predicted_ms":20}}`,
				`{"choices":[{"delta":{"content":"c"},"finish_reason":"length"}],"timings":{"prompt_ms":50,"predicted_ms":30}}`,
			},
			want: Timings{Prefill: 0.05, Decode: 0.03},
		},
		"SGLang": {
			kind: generate, pieces: []string{
				`{"text":"a","meta_info":{"finish_reason":null,"prompt_tokens":3,"completion_tokens":1}}`,
				`{"text":"ab","meta_info":{"finish_reason":{"type":"length"},"prompt_tokens":3,"completion_tokens":2,"e2e_latency":1.25}}`,
			},
			want: Timings{E2E: 1.25},
		},
	} {
		var r Record
		a := answer{record: &r, kind: c.kind, mayStop: true}
		r.MaxTokens = 3
		pieces := []string{}
		for _, p := range append(c.pieces, "[DONE]") {
			pieces = append(pieces, "data: "+p+"\n\n")
		}
		if err := read(t, &a, pieces...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.Timings == nil || *r.Timings != c.want || r.Timings.Busy() != max(c.want.E2E, c.want.Prefill+c.want.Decode) {
			t.Errorf("%s: %+v, want %+v", name, r.Timings, c.want)
		}
	}
	for parent, want := range map[string]string{"": "", "garbage": "", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": "0af7651916cd43dd8448eb211c80319c"} {
		if got := traceID(parent); got != want {
			t.Errorf("%q: %q", parent, got)
		}
	}
}
