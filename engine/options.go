package engine

import (
	"fmt"
	"slices"
	"strings"

	"kvferry/internal/config"
)

// The engines whose schedulers there are; see package batching.
const (
	VLLMV0 = "vllm-v0" // vLLM 0.6: whole prompts first, or with chunked prefill, decodes first
	VLLMV1 = "vllm-v1" // vLLM since 0.8: one token budget a step
	SGLang = "sglang"
)

// Schedulers are the names that Options.Scheduler may have.
func Schedulers() []string { return []string{VLLMV0, VLLMV1, SGLang} }

// Options are what an engine's scheduler is given on its own command line: which it is, and
// its options under the engine's own names. What is left out, or 0, is the engine's default.
// Options of another scheduler are not read, so that a profile may have those of two.
type Options struct {
	Scheduler string `json:"scheduler,omitempty"` // vllm-v0 if empty, whose limits are the profile's own

	// Of vllm-v1. MaxNumSeqs is the profile's max_num_seqs if 0.
	MaxNumSeqs        int `json:"max_num_seqs,omitempty"`
	MaxBatchedTokens  int `json:"max_num_batched_tokens,omitempty"`       // of a step, decodes included; default 2,048
	LongPrefillTokens int `json:"long_prefill_token_threshold,omitempty"` // of one prompt in a step that has others; 0 for no such bound

	// Of sglang. MaxRunningRequests is the profile's max_num_seqs if 0.
	MaxRunningRequests       int     `json:"max_running_requests,omitempty"`
	MaxPrefillTokens         int     `json:"max_prefill_tokens,omitempty"`   // of prompts in a step; default 16,384
	ChunkedPrefillSize       int     `json:"chunked_prefill_size,omitempty"` // likewise, where the last prompt may be cut; default 8,192, -1 cuts none
	RadixCache               bool    `json:"radix_cache,omitempty"`          // its prefix cache
	SchedulePolicy           string  `json:"schedule_policy,omitempty"`      // fcfs (default) or lpm: longest prefix match first
	ScheduleConservativeness float64 `json:"schedule_conservativeness,omitempty"`
	PrefillDecodeInterval    int     `json:"prefill_decode_interval,omitempty"` // decode steps that follow one with prompts
}

// Of SGLang's SchedulePolicy.
const (
	FCFS = "fcfs"
	LPM  = "lpm"
)

func (p *Profile) checkEngine(bad *config.Faults) {
	o := &p.Engine
	if o.Scheduler != "" && !slices.Contains(Schedulers(), o.Scheduler) {
		bad.Add("engine.scheduler", o.Scheduler, "use one of %s", strings.Join(Schedulers(), ", "))
	}
	for _, f := range []struct {
		name string
		v    int
	}{
		{"max_num_seqs", o.MaxNumSeqs},
		{"max_num_batched_tokens", o.MaxBatchedTokens},
		{"long_prefill_token_threshold", o.LongPrefillTokens},
		{"max_running_requests", o.MaxRunningRequests},
		{"max_prefill_tokens", o.MaxPrefillTokens},
		{"prefill_decode_interval", o.PrefillDecodeInterval},
	} {
		if f.v < 0 {
			bad.Add("engine."+f.name, f.v, "use 1 or more, or leave it out for the default")
		}
	}
	if o.ChunkedPrefillSize < -1 {
		bad.Add("engine.chunked_prefill_size", o.ChunkedPrefillSize, "use 1 or more, -1 to cut no prompt, or leave it out for the default")
	}
	if o.SchedulePolicy != "" && o.SchedulePolicy != FCFS && o.SchedulePolicy != LPM {
		bad.Add("engine.schedule_policy", o.SchedulePolicy, "use %s or %s", FCFS, LPM)
	}
	if seqs, tokens := p.Batch(); p.Scheduler() == VLLMV1 && tokens < seqs {
		bad.Add("engine.max_num_batched_tokens", tokens, "use max_num_seqs (%d) or more, or some sequences get no token in a step", seqs)
	}
	if !(o.ScheduleConservativeness >= 0 && o.ScheduleConservativeness <= 100) {
		bad.Add("engine.schedule_conservativeness", o.ScheduleConservativeness, "use a factor up to 100; 1 is the default")
	}
}

// Scheduler is the name of the engine whose scheduler is modelled.
func (p *Profile) Scheduler() string {
	if p.Engine.Scheduler == "" {
		return VLLMV0
	}
	return p.Engine.Scheduler
}

// WithScheduler is the profile with that engine's scheduler, or itself if that is its own or
// none is named.
func (p *Profile) WithScheduler(name string) *Profile {
	if name == "" || name == p.Scheduler() {
		return p
	}
	q := *p
	q.Engine.Scheduler = name
	if name == VLLMV0 {
		config.Default(&q.MaxBatchedTokens, q.MaxModelLen) // other schedulers' profiles may leave it out
	}
	return &q
}

// RadixCache reports whether the profile asks for a prefix cache, as SGLang has by itself.
func (p *Profile) RadixCache() bool { return p.Scheduler() == SGLang && p.Engine.RadixCache }

// CheckChunked says what is wrong with chunked prefill as a setting of a node's; nil if nothing is.
func (p *Profile) CheckChunked(chunked bool) error {
	if chunked && p.Scheduler() != VLLMV0 {
		return fmt.Errorf("is a setting of %s: %s cuts long prompts by its own options, in the profile's engine", VLLMV0, p.Scheduler())
	}
	return nil
}

// Batch is how many sequences the scheduler has in a batch at most, and how many tokens of
// prompts in a step: with vllm-v1 of decodes too. The defaults are those of vLLM 0.32
// (SchedulerConfig) and of SGLang 0.5 (ServerArgs).
func (p *Profile) Batch() (seqs, tokens int) {
	seqs, tokens = p.MaxNumSeqs, p.MaxBatchedTokens
	o := &p.Engine
	switch p.Scheduler() {
	case VLLMV1:
		seqs, tokens = o.MaxNumSeqs, o.MaxBatchedTokens
		config.Default(&tokens, 2048)
	case SGLang:
		seqs, tokens = o.MaxRunningRequests, o.MaxPrefillTokens
		config.Default(&tokens, 16384)
	}
	config.Default(&seqs, p.MaxNumSeqs)
	return seqs, tokens
}

// SetBatch sets what Batch returns, where it is not 0.
func (p *Profile) SetBatch(seqs, tokens int) {
	to := [...]*int{&p.MaxNumSeqs, &p.MaxBatchedTokens}
	switch p.Scheduler() {
	case VLLMV1:
		to = [...]*int{&p.Engine.MaxNumSeqs, &p.Engine.MaxBatchedTokens}
	case SGLang:
		to = [...]*int{&p.Engine.MaxRunningRequests, &p.Engine.MaxPrefillTokens}
	}
	for i, v := range [...]int{seqs, tokens} {
		if v != 0 {
			*to[i] = v
		}
	}
}
