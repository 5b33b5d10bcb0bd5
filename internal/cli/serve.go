package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/cluster"
	"kvferry/daemon"
	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/placement"
	"kvferry/transport/rails"
)

// serveNames are the flags that set the fields of the cluster.Config of kvferry serve.
var serveNames = map[string]string{
	"Prefill": "--prefill", "Decode": "--decode", "Nondisagg": "--both", "Handoff": "--handoff", "Placement": "--placement", "Profile": "--profile",
	"Link": "--link", "Rails": "--rail", "PrefixCaching": "--enable-prefix-caching", "HTTPAddr": "--http", "EOS": "--eos", "LogLevel": "--log-level",
}

func serveCommand() *cobra.Command {
	cfg := cluster.Config{StopTimeout: 35 * time.Second} // longer than the daemons' --drain-timeout
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a cluster here: a proxy and its nodes, until Ctrl-C",
		Long: `Run a cluster on this machine: a proxy that answers OpenAI's HTTP API, and its prefill
and decode nodes, each a process. KV bytes and network are real, the GPU is modelled.
Their logs go to standard error. Ctrl-C or SIGTERM ends them in good order: running requests
end first. If one of them ends by itself, all do.

On several machines, run kvferry proxy and kvferry node on each.

Exit status: 0 it was asked to end; 1 a daemon failed; 2 bad flags, or an address or amount
of memory that cannot be had.

` + daemon.ProxyTrust,
		Example: `  kvferry serve
  curl -N 127.0.0.1:8000/v1/completions -d '{"prompt":"hello","max_tokens":8,"stream":true}'
  kvferry bench http://127.0.0.1:8000 --num-prompts 100 --request-rate 4

  kvferry serve --prefill 2 --decode 2 --handoff pull --link 25gbit
  kvferry serve --both 2 --enable-prefix-caching`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			switch {
			case changed("both") && (changed("prefill") || changed("decode")):
				return invalid("--both", errors.New("a cluster has prefill and decode nodes, or nodes that do both: leave one kind out"))
			case changed("both"):
				cfg.Prefill, cfg.Decode = 0, 0
			}
			cfg.Log = cmd.ErrOrStderr()
			return config.Named(serveUntilDone(cmd, cfg), serveNames)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&cfg.Prefill, "prefill", 1, "prefill nodes")
	fs.IntVar(&cfg.Decode, "decode", 1, "decode nodes")
	fs.IntVar(&cfg.Nondisagg, "both", 0, "nodes that compute prompts and generate, instead of prefill and decode nodes")
	fs.StringVar(&cfg.Handoff, "handoff", "layerwise", "how KV moves from prefill to decode nodes: "+handoff.List())
	fs.StringVar(&cfg.Placement, "placement", placement.LeastLoaded, "which node takes a request: "+placement.Help())
	fs.StringVar(&cfg.Profile, "profile", engine.DefaultProfile, "what the modelled GPU costs: a shipped profile or a JSON file")
	fs.StringVar(&cfg.Link, "link", "native", "native for the network as it is, or the model of one NIC that transfers are paced to: a link of the profile (tcp, rdma), a rate such as 100gbit, or rate=..,latency=..")
	fs.Var((*rails.Specs)(&cfg.Rails), "rail", "what KV moves over: "+rails.Flag()+" (default TCP over loopback)")
	fs.BoolVar(&cfg.PrefixCaching, "enable-prefix-caching", false, "reuse the KV blocks of equal prompt prefixes")
	fs.StringVar(&cfg.HTTP, "http", "127.0.0.1:8000", "host:port where clients ask; port 0 takes a free one")
	fs.Var(&cfg.EOS, "eos", "after how many tokens answers end by themselves, see kvferry proxy --help (default the proxy's)")
	fs.StringVar(&cfg.LogLevel, "log-level", "info", "least level to log: debug (a line for every request), info, warn, error")
	return cmd
}

// serveUntilDone runs the cluster until the command's context ends, or one of its daemons does.
func serveUntilDone(cmd *cobra.Command, cfg cluster.Config) error {
	ctx := cmd.Context()
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		return err
	}
	nodes := len(c.Processes()) - 1
	fmt.Fprintf(cmd.OutOrStdout(), "serving at %s with %d nodes; end with Ctrl-C\n", c.URL(), nodes)
	fallen := make(chan string, nodes+1)
	for _, p := range c.Processes() {
		go func() {
			<-p.Done()
			fallen <- p.Name
		}()
	}
	select {
	case <-ctx.Done():
		err = nil
	case name := <-fallen:
		err = fmt.Errorf("%s has ended", strings.ReplaceAll(name, "nondisagg", "both"))
	}
	return errors.Join(err, c.Close())
}
