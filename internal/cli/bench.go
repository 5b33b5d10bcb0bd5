package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"kvferry/bench/serve"

	"kvferry/internal/config"
)

func benchCommand(terminal bool) *cobra.Command {
	f := benchFlags{log: new(lazyFile), cluster: newClusterFlags()}
	f.cluster.Node.WarmBytes = warmBytes
	cmd := &cobra.Command{
		Use:   "bench [URL]",
		Short: "Measure any OpenAI or SGLang server, or a cluster of kvferry's own",
		Long: `Send a load to a server and measure its answers: TTFT, TPOT, ITL and E2EL, in the
report of vllm bench serve or of sglang.bench_serving (--compat), with their flags,
their defaults, and the lengths, prompts and times that they draw from the same seed.

Who is asked:
  URL, --base-url URL, or --host and --port   a server that runs: vLLM, SGLang, llama.cpp,
                      a gateway, kvferry; --backend says which API. What it accepts is found
                      out before the run, and nothing is sent that it refuses.
  neither             a cluster of kvferry's own daemons, started for the run on this
                      machine: --prefill, --decode, --handoff, --rail, --link ...
                      KV bytes and network are real, the GPU is modelled.
  --clock virtual     the model of that cluster: the same command line in virtual time,
                      without waiting. --clock both sets the two side by side.

What is asked: --dataset-name and its options; how long prompts are is counted by
--tokenizer, a tokenizer.json of the Hugging Face format. Without one prompts are token
ids where the server takes them, else words, and the report says who counted.

When: --request-rate, --burstiness, --max-concurrency, the times of a trace, or
--find-rate: the highest rate at which --goodput is kept. A request is sent at its time
however slow the server is. Both its time and when it was really sent are recorded.

Results go to --out as they come: results.jsonl (a line for each request), and at the
end summary.json, table.md and report.html with plots. --save-result and --output-file
write the files of the two tools besides. Ctrl-C and SIGTERM stop the run and keep
what was done.

Exit status: 0 at most --max-failures requests failed, and at least one succeeded; 1 more
failed, the server did not answer, or results could not be written; 2 bad flags; 130
interrupted.`,
		Example: `  kvferry bench http://127.0.0.1:8000 --dataset-name random --random-input-len 1024 --random-output-len 128 --request-rate 4
  kvferry bench http://127.0.0.1:30000 --compat sglang --backend sglang --dataset-name random --num-prompts 200 --random-input-len 64 --random-output-len 16
  kvferry bench https://api.example.com/v1 --backend openai-chat --model m --tokenizer ./qwen --dataset-name sharegpt --dataset-path ShareGPT.json
  kvferry bench --trace mooncake_conversation.jsonl --prefill 2 --decode 2 --duration 60s     # on daemons of its own
  kvferry bench --trace mooncake_conversation.jsonl --prefill 2 --decode 2 --clock virtual    # the same, computed
  kvferry bench http://127.0.0.1:8000 --find-rate --goodput ttft:500 tpot:50`,
		Args: AtMostOne("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if cmd.Flags().Changed("base-url") {
					return invalid("URL", fmt.Errorf("%q: --base-url names a server too: leave one out", args[0]))
				}
				if err := cmd.Flags().Set("base-url", args[0]); err != nil {
					return err
				}
			}
			cfg, err := f.config(cmd.Flags())
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal && !f.quiet
			if f.clock != "virtual" && !f.server.named(cmd.Flags().Changed) {
				cmd.PrintErrln("no server is named: a cluster of kvferry's own is started on this machine, its GPUs modelled (kvferry bench URL is for a server that runs)")
			}
			if cmd.Flags().Changed("model") && !f.server.named(cmd.Flags().Changed) {
				cmd.PrintErrln("--model is of no account without a server: the model is that of --profile")
			}
			if f.less != "" {
				cmd.PrintErrln(f.less)
			}
			names := benchNames
			if f.load.trace != "" {
				names = joined(benchNames, map[string]string{"File": "--trace"})
			}
			return config.Named(serve.Run(cmd.Context(), cfg), names)
		},
	}
	AddGroups(cmd, true, f.groups()...)
	return cmd
}
