package sglang

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"sync"

	"kvferry/internal/config"
	"kvferry/load"
)

//go:embed runs.json
var runsJSON []byte

// A Published is one run of a published record: what was asked, and what its report says.
type Published struct {
	Workload string `json:"workload"`
	Setting  string `json:"setting"`
	Source   Source `json:"source"`

	Backend        string  `json:"backend"` // sglang: POST /generate; sglang-oai: /v1/completions
	NumPrompts     int     `json:"num_prompts"`
	InputLen       int     `json:"random_input_len"`
	OutputLen      int     `json:"random_output_len"`
	RangeRatio     float64 `json:"random_range_ratio"`
	Seed           uint64  `json:"seed"`
	MaxConcurrency int     `json:"max_concurrency"` // 0: all at once
	// Trace is what else there is of a run with LoRA adapters; nil of one without.
	Trace *Trace `json:"trace"`

	// Profile is the modelled server, by the name of a shipped profile.
	Profile string `json:"profile"`
	// Remarks say what the record itself gets wrong, or leaves open.
	Remarks []string `json:"remarks"`

	Counts  Counts  `json:"counts"`
	Figures Figures `json:"figures"`
}

// A Source says where a record was published.
type Source struct {
	URL   string `json:"url"`   // empty: none is known
	Known string `json:"known"` // what else is known of it
}

// String is both, a line.
func (s Source) String() string {
	if s.URL == "" {
		return s.Known
	}
	return s.URL + ": " + s.Known
}

// Counts are what a report counts. They must be met exactly: another count is another load.
type Counts struct {
	Successful  int `json:"successful_requests"`
	Input       int `json:"total_input_tokens"`
	Generated   int `json:"total_generated_tokens"`
	Retokenized int `json:"total_generated_tokens_retokenized,omitzero"`
	Peak        int `json:"max_concurrent_requests,omitempty"` // as SGLang counts it: in seconds
}

// Name is the run's in messages.
func (p *Published) Name() string { return p.Workload + " " + p.Setting }

// Load is what the run's client asked: the same lengths, in the same order.
func (p *Published) Load(vocab int) load.Spec {
	return load.Spec{
		Kind: load.RandomIDs, Compat: load.CompatSGLang, Requests: p.NumPrompts, Rate: math.Inf(1), Burstiness: 1,
		InputLen: p.InputLen, OutputLen: p.OutputLen, RangeRatio: p.RangeRatio, Seed: p.Seed, InFlight: p.MaxConcurrency, Vocab: vocab,
	}
}

// Runs are all published runs, in the order of the tables. The caller must not change them.
func Runs() []Published { return runs() }

var runs = sync.OnceValue(func() []Published {
	all, err := parse(runsJSON)
	if err != nil {
		panic(fmt.Sprintf("sglang: runs.json: %v", err)) // it is part of the program, and a test parses it
	}
	return all
})

func parse(data []byte) ([]Published, error) {
	var all []Published
	if err := config.Unmarshal(data, &all, true); err != nil {
		return nil, err
	}
	for i := range all {
		p := &all[i]
		if p.Source.Known == "" {
			return nil, fmt.Errorf("%s: source.known is missing: say where the record is from", p.Name())
		}
		for key := range p.Figures {
			if !slices.Contains(Keys(), key) {
				return nil, fmt.Errorf("%s: %s is no figure", p.Name(), key)
			}
		}
	}
	return all, nil
}
