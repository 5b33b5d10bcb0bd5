package sglang

import (
	"strings"

	"github.com/spf13/pflag"

	"kvferry/bench/report"
)

// What kvferry reproduce sglang says of itself.
const (
	Short = "SGLang's published runs beside the same runs of modelled servers"

	Long = `Run what was published of SGLang again, on modelled servers, and set each figure beside the
published one:

  qwen2.5-0.5b      200 requests at once, 64/16 tokens, POST /generate
  deepseek-v3       attention by flashinfer and by triton, 1000/1000 tokens, 32 and 16 at a time
  qwen3-coder-480b  3500/1500 tokens, 80 at a time
  lora-trace        two servers, four LoRA adapters, arrivals like Azure Functions'

A run is a workload and a setting, such as deepseek-v3/triton/128x16: that server, 128
requests, 16 at a time. The requests are those of sglang.bench_serving with the record's
flags, to the token, and the figures follow its formulas. Each server is a profile that
ships with kvferry and was fitted to the record it stands beside; --profile has another
in its place. Of lora-trace the record has neither arrivals nor lengths: they are rebuilt from
its counts, or from the trace that it names, if you have that (--trace-path).

Compute is modelled, and no KV moves. In virtual time nothing is waited for, and all runs take
seconds. --clock real starts the modelled servers as processes of this machine and asks them over
HTTP, as long as the record's client took: without --runs those runs that took at most a
minute. --clock both sets the clocks side by side.

Below the tables stands what a record itself gets wrong or leaves open.

Exit status: 0 all runs are sound; 1 a run is another load than its record's, or results
could not be written; 2 bad flags; 130 interrupted (what was done is kept).`

	Example = `  kvferry reproduce sglang
  kvferry reproduce sglang --runs deepseek-v3
  kvferry reproduce sglang --clock both --runs qwen2.5-0.5b
  kvferry reproduce sglang --runs deepseek-v3/triton/128x16 --profile my-server.json`
)

// AddFlags adds a flag for each field that a user sets, but for Out.
func (cfg *Config) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&cfg.Runs, "runs", nil, "a list of "+strings.Join(Names(), ", ")+" (default all)")
	fs.StringVar(&cfg.Clock, "clock", report.ClockVirtual, "virtual: compute; real: modelled servers on this machine; both")
	fs.StringVar(&cfg.Profile, "profile", "", "what the modelled server costs: a shipped profile's name, or a JSON file (default each run's own)")
	fs.StringVar(&cfg.TracePath, "trace-path", "", "Azure Functions 2021 trace, for the arrivals of lora-trace (default: rebuilt from what the record counts)")
}

// FlagNames are the flags that set the fields of a Config.
var FlagNames = map[string]string{"Runs": "--runs", "Clock": "--clock", "Profile": "--profile", "TracePath": "--trace-path", "Out": "--out"}
