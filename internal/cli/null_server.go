package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/nullserver"

	"kvferry/internal/config"
)

func nullServerCommand() *cobra.Command {
	var listen string
	var cfg nullserver.Config
	cmd := &cobra.Command{
		Use:   "null-server",
		Short: "Serve tokens at given times, to measure a client by",
		Long: `Answer OpenAI's completions and chats and SGLang's /generate with as many tokens
as are asked for, the first --ttft after the request, the others --itl apart, and
do nothing else. What a client measures beyond that is the client's own, whichever
client it is. It knows nothing of kvferry, and can be as strict as the strictest
server.

How late its own tokens were is printed at the end (Ctrl-C), and told by
GET /null/lateness: figures of a client are worth no more than that. On a machine
of its own CPU (taskset -c 0) it serves ten thousand streams of ten tokens a second.`,
		Example: `  kvferry null-server --listen 127.0.0.1:8000 --ttft 50ms --itl 10ms
  kvferry null-server --strict --text-only --key secret --no-health
  taskset -c 0 kvferry null-server --itl 100ms --tokens 200`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serveNull(cmd.Context(), cmd.OutOrStdout(), listen, cfg)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&listen, "listen", "127.0.0.1:8000", "`ADDRESS` of the API")
	fs.DurationVar(&cfg.TTFT, "ttft", 50*time.Millisecond, "from a request's last byte to its first token; 0: at once")
	fs.DurationVar(&cfg.ITL, "itl", 10*time.Millisecond, "between tokens; 0: at once")
	fs.IntVar(&cfg.Tokens, "tokens", 0, "of every answer; left out, as many as are asked for")
	fs.StringVar(&cfg.Model, "model", "null", "`NAME` of the only model")
	fs.BoolVar(&cfg.Strict, "strict", false, "refuse fields that OpenAI's API does not have")
	fs.BoolVar(&cfg.TextOnly, "text-only", false, "refuse prompts of token ids")
	fs.StringVar(&cfg.Key, "key", "", "the API `KEY` that requests must have")
	fs.BoolVar(&cfg.NoHealth, "no-health", false, "have no /health")
	fs.BoolVar(&cfg.NoModels, "no-models", false, "have no /v1/models")
	fs.BoolVar(&cfg.NoUsage, "no-usage", false, "refuse stream_options, and count no tokens")
	fs.BoolVar(&cfg.NoStream, "no-stream", false, "answer in one piece, streaming or not")
	Positive(fs, "tokens")
	return cmd
}

// serveNull serves until ctx is done, and says how late it was.
func serveNull(ctx context.Context, w io.Writer, address string, cfg nullserver.Config) error {
	var bad config.Faults
	_, _, err := config.Address(address)
	if bad.Check("--listen", err); bad != nil {
		return bad.Err("")
	}
	listener, err := config.Listen("--listen", address)
	if err != nil {
		return err
	}
	s, err := nullserver.Start(listener, cfg)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "serving %s at %s: TTFT %v, ITL %v\n", cfg.Model, s.URL(), cfg.TTFT, cfg.ITL)
	<-ctx.Done()
	if err := s.Close(); err != nil {
		return err
	}
	l := s.Lateness()
	fmt.Fprintf(w, "%d tokens; late by %v (P50), %v (P99), %v at most\n", l.Count(), l.Percentile(50).Round(time.Microsecond), l.Percentile(99).Round(time.Microsecond), l.Max().Round(time.Microsecond))
	return nil
}
