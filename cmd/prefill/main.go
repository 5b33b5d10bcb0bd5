// Command prefill runs a prefill node: it computes prompts' KV and hands it to
// decode nodes.
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
	cmd := &cobra.Command{
		Use:   "prefill --id NAME",
		Short: "Run a prefill node",
		Long: `prefill registers with the proxy and computes the prompts it is given, on the
modelled GPU of --profile. The KV is real bytes in this process's memory; decode
nodes fetch it, or have it written to them layer by layer, over --rail.

On SIGTERM or SIGINT it takes no new requests, lets running ones end for
--drain-timeout, deregisters and exits; a second signal ends it at once.

Exit status: 0 it was asked to end; 1 it failed while it ran; 2 bad flags, or an
address, device or amount of memory that this machine has not.

` + daemon.NodeTrust,
		Example: `  # with a proxy and a decode node on this machine
  prefill --id prefill-0

  # on a machine of its own, reachable at 10.0.0.2, over two NICs
  prefill --id prefill-0 --proxy 10.0.0.1:9000 --grpc 10.0.0.2:9100 --rail 10.0.0.2:9101,10.0.1.2:9101
  prefill --id prefill-1 --proxy 10.0.0.1:9000 --grpc 10.0.0.4:9100 --rail rdma/mlx5_0,rdma/mlx5_1

  # its network paced to the 1.38 GB/s that fit the published TCP runs
  prefill --id prefill-0 --link tcp`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return daemon.RunNode(cmd.Context(), proto.Role_ROLE_PREFILL, &flags, logs)
		},
	}
	flags.AddFlags(cmd.Flags(), false)
	logs.AddFlags(cmd.Flags())
	cli.Positive(cmd.Flags(), daemon.PositiveNodeFlags...)
	cli.Needs(cmd.Flags(), daemon.TierNeeds)
	cli.Values(cmd, daemon.Values())
	return cli.Program{Root: cmd}
}
