package client

import "strings"

// Timings are what a server says in its answer of the time that a request took there, in
// seconds. What it does not say is 0.
type Timings struct {
	E2E     float64 `json:"e2e,omitempty"`     // from its arrival to its end: SGLang's e2e_latency
	Prefill float64 `json:"prefill,omitempty"` // of the prompt: llama.cpp's prompt_ms
	Decode  float64 `json:"decode,omitempty"`  // of the output: llama.cpp's predicted_ms
}

// Busy is for how long the server says it had the request: what it says of the whole, or
// of the parts, between which the request may have waited.
func (t *Timings) Busy() float64 { return max(t.E2E, t.Prefill+t.Decode) }

// llamaTimings are llama.cpp's, in the last chunk of an answer, or with timings_per_token in
// every one.
type llamaTimings struct {
	PromptMS    float64 `json:"prompt_ms"`
	PredictedMS float64 `json:"predicted_ms"`
}

// timings are those of a chunk, nil if it has none. Every event of SGLang's /generate has
// its account so far; only that of the last has an E2E.
func (c *chunk) timings() *Timings {
	switch {
	case c.Timings != nil:
		return &Timings{Prefill: c.Timings.PromptMS / 1e3, Decode: c.Timings.PredictedMS / 1e3}
	case c.Meta != nil && c.Meta.E2ELatency != 0:
		return &Timings{E2E: c.Meta.E2ELatency}
	}
	return nil
}

// traceID is that of a traceparent, "" if it is none.
func traceID(parent string) string {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 {
		return ""
	}
	return parts[1]
}
