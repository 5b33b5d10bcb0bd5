package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/cluster"
	"kvferry/internal/config"
)

func serveCommand() *cobra.Command {
	spec := cluster.Spec{Prefill: 1, Decode: 1, StopTimeout: 35 * time.Second} // longer than the daemons' --drain-timeout
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a cluster here: a proxy and its nodes, until Ctrl-C",
		Long: `Run a cluster on this machine: a proxy that answers OpenAI's HTTP API, and its prefill
and decode nodes, each a process. KV bytes and network are real, the GPU is modelled.
Their logs go to standard error. Ctrl-C or SIGTERM ends them in good order: running requests
end first. If one of them ends by itself, all do.

On several machines, run kvferry proxy and kvferry node on each. What ps shows of the
processes are their command lines.

Exit status: 0 it was asked to end; 1 a daemon failed; 2 bad flags, or an address or amount
of memory that cannot be had.

` + cluster.ProxyTrust,
		Example: `  kvferry serve
  curl -N 127.0.0.1:8000/v1/completions -d '{"prompt":"hello","max_tokens":8,"stream":true}'
  kvferry bench http://127.0.0.1:8000 --num-prompts 100 --request-rate 4

  kvferry serve --prefill 2 --decode 2 --handoff pull --link 25gbit
  kvferry serve --both 2 --enable-prefix-caching`,
		Args: NoArgs,
	}
	knobs := cluster.Knobs.For(cluster.Serve)
	AddGroups(cmd, true, knobs.Flags(&spec, cluster.Serve)...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		changed := cmd.Flags().Changed
		switch {
		case changed("both") && (changed("prefill") || changed("decode")):
			return invalid("--both", errKinds)
		case changed("both"):
			spec.Prefill, spec.Decode = 0, 0
		}
		spec.Log = cmd.ErrOrStderr()
		config.Default(&spec.Proxy.HTTPAddr, spec.Proxy.WithDefaults().HTTPAddr)
		if bad := knobs.Check(&spec, changed); len(bad) > 0 {
			return bad.Err("")
		}
		return config.Named(serveUntilDone(cmd, spec), cluster.Names)
	}
	return cmd
}

// serveUntilDone runs the cluster until the command's context ends, or one of its daemons does.
func serveUntilDone(cmd *cobra.Command, spec cluster.Spec) error {
	ctx := cmd.Context()
	c, err := cluster.Start(ctx, spec)
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
