// Package toolflags has the flags of vllm bench serve and sglang.bench_serving that mean nothing to
// kvbench serve.
package toolflags

// A Flag is one that is refused, with what to use instead.
type Flag struct {
	Takes int // how many values
	Fix   string
}

// How many values a flag takes.
const (
	None = iota
	One
	Many
)

// What several flags are refused with.
const (
	noMedia    = "images and sound are not sent here: leave it out, loads are text or tokens"
	noHub      = "nothing is downloaded here: save the prompts as JSON lines, and use --dataset-name custom with --dataset-path"
	noRanks    = "embeddings and rankings have no tokens to time: leave it out, loads are of models that generate"
	noProfiler = "kvbench does not start the server's profiler: ask the server itself, POST /start_profile and /stop_profile"
	inBody     = "what a server is asked besides goes into the body: --extra-body "
	inReport   = "leave it out: report.html in --out has the timeline, throughput and concurrency, and the distributions"
)

// Refused are those of vLLM 0.32 and SGLang 0.5.23. cmd/kvbench/testdata/tool_flags.tsv has all that the tools
// have, and the test that none is unknown.
var Refused = map[string]Flag{
	"use-beam-search":         {None, "a beam search cannot be streamed: " + inBody + `'{"use_beam_search": true}' with --disable-stream`},
	"logprobs":                {One, inBody + `'{"logprobs": 1}'`},
	"return-logprob":          {None, inBody + `'{"return_logprob": true}'`},
	"top-logprobs-num":        {One, inBody + `'{"return_logprob": true, "top_logprobs_num": 5}'`},
	"token-ids-logprob":       {Many, inBody + `'{"return_logprob": true, "token_ids_logprob": [1, 2]}'`},
	"logprob-start-len":       {One, inBody + `'{"return_logprob": true, "logprob_start_len": 0}'`},
	"return-routed-experts":   {None, inBody + `'{"return_routed_experts": true}'`},
	"fake-prefill":            {None, inBody + `'{"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}'`},
	"cache-report":            {None, "leave it out: the report has the prompt tokens that the server had cached, as far as it says so; SGLang's OpenAI API does with " + `--extra-body '{"return_cached_tokens_details": true}'`},
	"probe-request-rate":      {One, "run a second kvbench serve beside this one, with --random-output-len 1 and its own --request-rate"},
	"chat-template-kwargs":    {One, "templates are rendered with their defaults here: have the server render them, --backend openai-chat and " + `--extra-body '{"chat_template_kwargs": {...}}'`},
	"print-requests":          {None, "leave it out: results.jsonl in --out has a line for each request as it ends"},
	"plot-timeline":           {None, inReport},
	"timeline-itl-thresholds": {One, inReport},
	"plot-dataset-stats":      {None, inReport},
	"plot-throughput":         {None, inReport},

	"enable-multimodal-chat": {None, noMedia}, "custom-ensure-client-side-data": {None, noMedia},
	"random-mm-base-items-per-request": {One, noMedia}, "random-mm-num-mm-items-range-ratio": {One, noMedia},
	"random-mm-limit-mm-per-prompt": {One, noMedia}, "random-mm-bucket-config": {One, noMedia},
	"asr-max-audio-len-sec": {One, noMedia}, "asr-min-audio-len-sec": {One, noMedia},
	"image-count": {One, noMedia}, "image-resolution": {One, noMedia}, "image-format": {One, noMedia}, "image-content": {One, noMedia}, "random-image-count": {None, noMedia},
	"hf-name": {One, noHub}, "hf-subset": {One, noHub}, "hf-split": {One, noHub}, "hf-output-len": {One, noHub},
	"blazedit-min-distance": {One, noHub}, "blazedit-max-distance": {One, noHub}, "bfcl-categories": {One, noHub},
	"random-batch-size": {One, noRanks}, "no-reranker": {None, noRanks},

	"profile-activities": {Many, noProfiler}, "profile-start-step": {One, noProfiler}, "profile-steps": {One, noProfiler}, "profile-num-steps": {One, noProfiler},
	"profile-by-stage": {None, noProfiler}, "profile-stages": {Many, noProfiler}, "profile-output-dir": {One, noProfiler}, "profile-prefix": {One, noProfiler},
	"pd-separated": {None, noProfiler}, "profile-prefill-url": {Many, noProfiler}, "profile-decode-url": {Many, noProfiler},
}
