package cli

import (
	"github.com/spf13/cobra"

	"kvferry/bench/result"

	"kvferry/internal/config"
)

func compareCommand() *cobra.Command {
	var cfg result.CompareConfig
	cmd := &cobra.Command{
		Use:   "compare RESULT RESULT...",
		Short: "Results side by side, also of vLLM's and SGLang's clients",
		Long: `Set results of serving benchmarks side by side. The others are compared with the
first. A RESULT is

  a folder of kvferry bench, mooncake or simulate
  a result file of vllm bench serve, detailed or not, with one run or several
  a result file of sglang.bench_serving, with details or without
  a text in which one of these clients printed its report

and may hold several results. Where every RESULT holds several of the same names,
such as the rows of kvferry reproduce mooncake, those of one name are compared.

Where the requests are listed (results.jsonl, or a detailed result file), the
differences of latencies have intervals, by a bootstrap over requests: if 0 is
in it, no difference is shown. An interval says what other requests of these runs
would have changed, not what another run of the same server would: repeat a run
before a small difference is believed. What was not run alike is said: rate,
lengths, prompts, seed, failed requests.

Exit status: 0 compared, whatever differs; 1 files could not be written; 2
bad flags, or a RESULT that is none.`,
		Example: `  kvferry compare kvferry-out/20261122-101500 kvferry-out/20261122-103000
  kvferry compare flashinfer.jsonl triton.jsonl --out compared
  kvferry compare kvferry-out/real openai-8.0qps-Qwen2.5-7B-20261122-101500.json sglang.txt`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg.Paths, cfg.Stdout = args, cmd.OutOrStdout()
			return config.Named(result.Compare(cfg), map[string]string{
				"Paths": "RESULT", "Out": "--out", "Confidence": "--confidence", "Draws": "--draws",
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Out, "out", "", "folder for compare.json, table.md and report.html with the distributions; one that has results already is refused (default: none, only print)")
	fs.Float64Var(&cfg.Confidence, "confidence", 95, "of the intervals, in percent")
	fs.IntVar(&cfg.Draws, "draws", 2000, "of the requests, by which an interval is found; fewer where there are millions of values")
	fs.Uint64Var(&cfg.Seed, "seed", 0, "of the draws")
	Positive(fs, "draws")
	return cmd
}
