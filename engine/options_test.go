package engine

import (
	"encoding/json"
	"strings"
	"testing"
)

// parseWith is the shipped profile with another line in it.
func parseWith(t *testing.T, line string) (*Profile, error) {
	t.Helper()
	return ParseProfile([]byte(strings.Replace(string(shippedText(t, DefaultProfile)), `  "costs": {`, line+"\n  \"costs\": {", 1)))
}

// TestBatch: each scheduler has its limits under its engine's names, with the engine's defaults,
// and is told others there.
func TestBatch(t *testing.T) {
	for _, c := range []struct {
		engine                 string
		scheduler              string
		seqs, tokens           int
		setSeqs, setTokens     string // where SetBatch puts them
		radixCache, mayBeChunk bool
	}{
		{``, VLLMV0, 256, 10000, `"max_num_seqs":7,`, `"max_num_batched_tokens":12000,"chunk_tokens"`, false, true},
		{`"engine": {"radix_cache": true},`, VLLMV0, 256, 10000, `"max_num_seqs":7,`, `"max_num_batched_tokens":12000,"chunk_tokens"`, false, true},
		{`"engine": {"scheduler": "vllm-v1"},`, VLLMV1, 256, 2048, `"engine":{"scheduler":"vllm-v1","max_num_seqs":7,`, `"max_num_batched_tokens":12000}`, false, false},
		{
			`"engine": {"scheduler": "vllm-v1", "max_num_seqs": 1024, "max_num_batched_tokens": 8192, "max_prefill_tokens": 9},`,
			VLLMV1, 1024, 8192, `"engine":{"scheduler":"vllm-v1","max_num_seqs":7,`, `"max_num_batched_tokens":12000,`, false, false,
		},
		{`"engine": {"scheduler": "sglang", "radix_cache": true},`, SGLang, 256, 16384, `"max_running_requests":7,`, `"max_prefill_tokens":12000,`, true, false},
		{`"engine": {"scheduler": "sglang", "max_running_requests": 80, "max_prefill_tokens": 56000},`, SGLang, 80, 56000, `"max_running_requests":7,`, `"max_prefill_tokens":12000}`, false, false},
	} {
		p, err := parseWith(t, c.engine)
		if err != nil {
			t.Fatal(err)
		}
		seqs, tokens := p.Batch()
		if p.Scheduler() != c.scheduler || seqs != c.seqs || tokens != c.tokens || p.RadixCache() != c.radixCache || (p.CheckChunked(true) == nil) != c.mayBeChunk || p.CheckChunked(false) != nil {
			t.Errorf("%s: %s with %d sequences and %d tokens, radix cache %v, chunked %v", c.engine, p.Scheduler(), seqs, tokens, p.RadixCache(), p.CheckChunked(true))
		}
		p.SetBatch(0, 0)
		if a, b := p.Batch(); a != seqs || b != tokens {
			t.Errorf("%s: nothing was set, and it is %d and %d", c.engine, a, b)
		}
		p.SetBatch(7, 12000)
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := p.Batch(); a != 7 || b != 12000 || !strings.Contains(string(out), c.setSeqs) || !strings.Contains(string(out), c.setTokens) {
			t.Errorf("%s: %d and %d, in %s", c.engine, a, b, out)
		}
	}
}

// TestOptionFaults: each is named as in the file, and the options of an engine are not part of
// what is modelled of the GPU.
func TestOptionFaults(t *testing.T) {
	for option, want := range map[string]string{
		`"scheduler": "vllm"`:                                   `engine.scheduler: "vllm": use one of vllm-v0, vllm-v1, sglang`,
		`"max_num_seqs": -1`:                                    "engine.max_num_seqs: -1: ",
		`"max_num_batched_tokens": -1`:                          "engine.max_num_batched_tokens: -1: ",
		`"long_prefill_token_threshold": -1`:                    "engine.long_prefill_token_threshold: -1: ",
		`"max_running_requests": -1`:                            "engine.max_running_requests: -1: ",
		`"max_prefill_tokens": -1`:                              "engine.max_prefill_tokens: -1: ",
		`"chunked_prefill_size": -2`:                            "engine.chunked_prefill_size: -2: ",
		`"prefill_decode_interval": -1`:                         "engine.prefill_decode_interval: -1: ",
		`"schedule_policy": "lof"`:                              `engine.schedule_policy: "lof": use fcfs or lpm`,
		`"schedule_conservativeness": -0.1`:                     "engine.schedule_conservativeness: -0.1: ",
		`"scheduler": "vllm-v1", "max_num_batched_tokens": 255`: "engine.max_num_batched_tokens: 255: use max_num_seqs (256) or more",
		`"page_size": 1`:                                        `there is no field "page_size"`,
	} {
		if _, err := parseWith(t, `"engine": {`+option+`},`); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", option, err, want)
		}
	}
	p, err := parseWith(t, `"engine": {"scheduler": "sglang", "chunked_prefill_size": -1, "schedule_policy": "lpm"},`)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Fingerprint(), shipped(t).Fingerprint(); got != want {
		t.Errorf("another scheduler changed the fingerprint from %s to %s", want, got)
	}
}

// TestWithoutV0Limit: a profile of another scheduler may leave out vllm-v0's limit, and has one when it takes that scheduler.
func TestWithoutV0Limit(t *testing.T) {
	p, err := LoadProfile(DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	q := *p
	q.MaxBatchedTokens, q.Engine.Scheduler = 0, VLLMV1
	if err := q.Validate(); err != nil {
		t.Error(err)
	}
	if v0 := q.WithScheduler(VLLMV0); v0.MaxBatchedTokens != q.MaxModelLen || v0.Validate() != nil {
		t.Errorf("%d tokens a step: %v", v0.MaxBatchedTokens, v0.Validate())
	}
	if text, err := json.Marshal(q); err != nil || strings.Contains(string(text), `"max_num_batched_tokens"`) {
		t.Errorf("%s: %v", text, err)
	}
	q.MaxBatchedTokens = 4096
	if err := q.Validate(); err == nil || !strings.Contains(err.Error(), "leave it out; what counts with vllm-v1 is engine.max_num_batched_tokens") {
		t.Error(err)
	}
}
