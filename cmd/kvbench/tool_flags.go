package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"kvferry/config"
)

// toolFlags are flags of vllm bench serve and sglang.bench_serving that mean nothing here, or
// something that kvbench serve says otherwise. Help does not show them.
type toolFlags struct {
	served    string // --served-model-name
	mode      string // --tokenizer-mode
	workload  string // --mooncake-workload
	selfTimed bool   // --self-timed, and SGLang's name for it
}

// A foreign flag is one that is refused, with what to use instead.
type foreign struct {
	takes int // how many values
	fix   string
}

// How many values a foreign flag takes.
const (
	none = iota
	one
	many
)

// What several foreign flags are refused with.
const (
	noMedia    = "images and sound are not sent here: leave it out, loads are text or tokens"
	noHub      = "nothing is downloaded here: save the prompts as JSON lines, and use --dataset-name custom with --dataset-path"
	noRanks    = "embeddings and rankings have no tokens to time: leave it out, loads are of models that generate"
	noProfiler = "kvbench does not start the server's profiler: ask the server itself, POST /start_profile and /stop_profile"
	inBody     = "what a server is asked besides goes into the body: --extra-body "
	inReport   = "leave it out: report.html in --out has the timeline, throughput and concurrency, and the distributions"
)

// foreigns are those of vLLM 0.32 and SGLang 0.5.23. testdata/tool_flags.tsv has all that the tools
// have, and the test that none is unknown.
var foreigns = map[string]foreign{
	"use-beam-search":         {none, "a beam search cannot be streamed: " + inBody + `'{"use_beam_search": true}' with --disable-stream`},
	"logprobs":                {one, inBody + `'{"logprobs": 1}'`},
	"return-logprob":          {none, inBody + `'{"return_logprob": true}'`},
	"top-logprobs-num":        {one, inBody + `'{"return_logprob": true, "top_logprobs_num": 5}'`},
	"token-ids-logprob":       {many, inBody + `'{"return_logprob": true, "token_ids_logprob": [1, 2]}'`},
	"logprob-start-len":       {one, inBody + `'{"return_logprob": true, "logprob_start_len": 0}'`},
	"return-routed-experts":   {none, inBody + `'{"return_routed_experts": true}'`},
	"fake-prefill":            {none, inBody + `'{"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}'`},
	"cache-report":            {none, "leave it out: the report has the prompt tokens that the server had cached, as far as it says so; SGLang's OpenAI API does with " + `--extra-body '{"return_cached_tokens_details": true}'`},
	"probe-request-rate":      {one, "run a second kvbench serve beside this one, with --random-output-len 1 and its own --request-rate"},
	"chat-template-kwargs":    {one, "templates are rendered with their defaults here: have the server render them, --backend openai-chat and " + `--extra-body '{"chat_template_kwargs": {...}}'`},
	"print-requests":          {none, "leave it out: results.jsonl in --out has a line for each request as it ends"},
	"plot-timeline":           {none, inReport},
	"timeline-itl-thresholds": {one, inReport},
	"plot-dataset-stats":      {none, inReport},
	"plot-throughput":         {none, inReport},

	"enable-multimodal-chat": {none, noMedia}, "custom-ensure-client-side-data": {none, noMedia},
	"random-mm-base-items-per-request": {one, noMedia}, "random-mm-num-mm-items-range-ratio": {one, noMedia},
	"random-mm-limit-mm-per-prompt": {one, noMedia}, "random-mm-bucket-config": {one, noMedia},
	"asr-max-audio-len-sec": {one, noMedia}, "asr-min-audio-len-sec": {one, noMedia},
	"image-count": {one, noMedia}, "image-resolution": {one, noMedia}, "image-format": {one, noMedia}, "image-content": {one, noMedia}, "random-image-count": {none, noMedia},
	"hf-name": {one, noHub}, "hf-subset": {one, noHub}, "hf-split": {one, noHub}, "hf-output-len": {one, noHub},
	"blazedit-min-distance": {one, noHub}, "blazedit-max-distance": {one, noHub}, "bfcl-categories": {one, noHub},
	"random-batch-size": {one, noRanks}, "no-reranker": {none, noRanks},

	"profile-activities": {many, noProfiler}, "profile-start-step": {one, noProfiler}, "profile-steps": {one, noProfiler}, "profile-num-steps": {one, noProfiler},
	"profile-by-stage": {none, noProfiler}, "profile-stages": {many, noProfiler}, "profile-output-dir": {one, noProfiler}, "profile-prefix": {one, noProfiler},
	"pd-separated": {none, noProfiler}, "profile-prefill-url": {many, noProfiler}, "profile-decode-url": {many, noProfiler},
}

// register adds them; help lists none.
func (f *toolFlags) register(to *pflag.FlagSet) {
	fs := pflag.NewFlagSet("of the tools", pflag.ContinueOnError)
	fs.StringVar(&f.served, "served-model-name", "", "the model to ask for, where --model is another")
	fs.StringVar(&f.mode, "tokenizer-mode", "auto", "auto or hf")
	fs.StringVar(&f.workload, "mooncake-workload", "", "of the traces that SGLang downloads")
	fs.BoolVar(&f.selfTimed, "self-timed", false, "send a trace's requests at its own times")
	alias(fs, "use-trace-timestamps", "self-timed")
	fs.Bool("skip-tokenizer-init", false, "nothing: there is no tokenizer without --tokenizer")
	fs.Bool("no-stream", false, "nothing: a file is read here, not streamed from a hub")
	fs.Bool("rust-client", false, "nothing: there is one client here")
	fs.Int("rust-worker-threads", 0, "nothing: there is one client here")
	for _, name := range slices.Sorted(maps.Keys(foreigns)) {
		if foreigns[name].takes == none {
			fs.Bool(name, false, "refused")
		} else {
			fs.StringArray(name, nil, "refused")
		}
	}
	fs.VisitAll(func(flag *pflag.Flag) { flag.Hidden = true })
	to.AddFlagSet(fs)
}

// settle refuses what is of no use here, and has the rest do what it does in its tool.
func (f *toolFlags) settle(s *serveFlags, changed func(string) bool, bad *config.Faults) {
	for _, name := range slices.Sorted(maps.Keys(foreigns)) {
		if changed(name) {
			bad.Check("--"+name, errors.New(foreigns[name].fix))
		}
	}
	if f.served != "" {
		s.server.client.Model = f.served
	}
	if f.mode != "auto" && f.mode != "hf" {
		bad.Add("--tokenizer-mode", f.mode, "use auto or hf: a tokenizer is a tokenizer.json here")
	}
	if f.workload != "" && s.load.spec.File == "" {
		bad.Add("--mooncake-workload", f.workload, "nothing is downloaded here: name the trace's file with --dataset-path")
	}
	switch l := &s.load.spec; {
	case !f.selfTimed:
	case l.Untimed:
		bad.Check("--self-timed", errors.New("--untimed says the contrary: leave one out"))
	case !l.Reads("Untimed"):
		bad.Check("--self-timed", errors.New("the load has no times of its own: name a trace, or use --request-rate"))
	}
}
