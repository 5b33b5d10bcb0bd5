// Command decode runs a decode node, or with --nondisagg a node that computes
// prompts as well.
package main

import (
	"github.com/spf13/cobra"

	"kvferry/daemon"
	"kvferry/internal/cli"
	"kvferry/proto"
)

func main() {
	daemon.Tune()
	program().Main()
}

// program is made anew for each command line: flags keep what they were given.
func program() cli.Program {
	var flags daemon.NodeFlags
	var logs daemon.LogFlags
	var nondisagg bool
	cmd := &cobra.Command{
		Use:   "decode --id NAME",
		Short: "Run a decode node, or one that serves alone",
		Long: `decode registers with the proxy and generates tokens on the modelled GPU of
--profile, from KV that a prefill node computed. Blocks are
compared with the digests that were made where they were computed (--kv-checks).

With --nondisagg it computes prompts too, and serves requests alone: what
disaggregation is measured against.

On SIGTERM or SIGINT it takes no new requests, lets running ones end for
--drain-timeout, deregisters and exits; a second signal ends it at once.

Exit status: 0 it was asked to end; 1 it failed while it ran; 2 bad flags, or an
address, device or amount of memory that this machine has not.

` + daemon.NodeTrust,
		Example: `  # with a proxy and a prefill node on this machine
  decode --id decode-0

  # a non-disaggregated node with chunked prefill
  decode --id both-0 --nondisagg --enable-chunked-prefill

  # on a machine of its own, reachable at 10.0.0.3
  decode --id decode-0 --proxy 10.0.0.1:9000 --grpc 10.0.0.3:9100 --rail 10.0.0.3:9101`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			role := proto.Role_ROLE_DECODE
			if nondisagg {
				role = proto.Role_ROLE_NONDISAGG
			}
			return daemon.RunNode(cmd.Context(), role, &flags, logs)
		},
	}
	flags.AddFlags(cmd.Flags(), true)
	cmd.Flags().BoolVar(&nondisagg, "nondisagg", false, "compute prompts too and serve requests alone")
	logs.AddFlags(cmd.Flags())
	cli.Positive(cmd.Flags(), daemon.PositiveNodeFlags...)
	cli.Needs(cmd.Flags(), daemon.TierNeeds)
	cli.Values(cmd, daemon.Values())
	return cli.Program{Root: cmd}
}
