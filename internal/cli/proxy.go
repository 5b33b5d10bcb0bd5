package cli

import (
	"github.com/spf13/cobra"

	"kvferry/cluster"
	"kvferry/internal/config"
)

// Proxy returns kvferry proxy as a program of its own.
func Proxy() Program {
	cmd := proxyCommand()
	setValues(cmd)
	return Program{Root: cmd, Args: spreadProxy}
}

func proxyCommand() *cobra.Command {
	var spec cluster.Spec
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Serve OpenAI's HTTP API over the nodes that register here",
		Long: `The proxy is the front of a kvferry cluster. Clients talk HTTP to it, nodes register
with it over gRPC and keep a lease. It places each request on a prefill and a
decode node, or on one node that does both, streams the tokens back, and places
a request again if a node fails.

With --upstream-prefill and --upstream-decode, or --upstream, real engines answer
in place of nodes: unmodified vLLM, or what else speaks its API. A request goes to a
prefill engine for one token, and with the kv_transfer_params of that answer to a
decode engine, whose bytes the client gets; the KV moves by the engines' own
connector. With --upstream-bootstrap both are asked at the same time. What an engine fails goes to another one. Endpoints are
/v1/completions, /v1/chat/completions, /v1/models, /tokenize and /detokenize then,
and what the proxy says of itself.

Endpoints: /v1/completions, /v1/chat/completions and SGLang's /generate
(streaming and not), /v1/models, /tokenize, /detokenize, /health, /metrics,
/server_info, /model_info, /version; /tokenizer/tokenizer.json is what texts are
counted by, for clients (see kvferry tokenizer); /flush_cache and /reset_prefix_cache empty
the nodes' prefix caches, /start_profile and /stop_profile take a CPU profile of
the proxy.

On SIGTERM or SIGINT it answers new requests 503, lets running ones end for
--drain-timeout, and exits; a second signal ends it at once.

What comes faster than the nodes can serve it waits. Beyond --max-queue waiting
requests, and beyond --max-queue-time of expected wait if that is set, clients
get 429 with a Retry-After; /metrics has the wait to expect now.

Sampling parameters are accepted and have no effect: tokens are a function of
the prompt, of "seed" and of the answer's index. Answers end by themselves after
a number of tokens that --eos draws, unless a request has "ignore_eos". Beyond
OpenAI's, a request may carry "timeout" (seconds), "ignore_eos", "min_tokens",
"stop_token_ids", and "return_breakdown" (where its time went, node by node).
What cannot be honoured, such as logprobs, is refused by name; docs/serving.md
has the list.

Exit status: 0 it was asked to end; 1 it failed while it ran; 2 bad flags, or an
address that cannot be had.

` + cluster.ProxyTrust,
		Example: `  # a cluster on one machine, then a request
  kvferry proxy --http 127.0.0.1:8000 --grpc 127.0.0.1:9000 --handoff layerwise
  curl -N 127.0.0.1:8000/v1/completions -d '{"prompt":"hello","max_tokens":8,"stream":true}'

  # a model with two names, and two adapters; all answers have 20 tokens or about so
  kvferry proxy --served-model-name org/model main --lora-modules sql=/a/sql chat=/a/chat --eos median=20,sigma=0.1

  # two vLLM instances with a KV connector, which listen at 8100 and 8200
  kvferry proxy --upstream-prefill http://10.0.0.2:8100 --upstream-decode http://10.0.0.3:8200

  # reachable from other machines, one line of log a request
  kvferry proxy --http :8000 --grpc :9000 --log-level debug --log-format json`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.Named(spec.Run(cmd.Context(), true, nil), cluster.Names)
		},
	}
	AddGroups(cmd, false, cluster.Knobs.For(cluster.Proxy).Flags(&spec, cluster.Proxy)...)
	return cmd
}
