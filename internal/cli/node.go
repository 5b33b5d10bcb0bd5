package cli

import (
	"github.com/spf13/cobra"

	"kvferry/cluster"
	"kvferry/internal/config"
)

// Node returns kvferry node as a program of its own, whose --role is role by default.
func Node(role string) Program {
	cmd := nodeCommand(role)
	cmd.Use = role + " --id NAME"
	setValues(cmd)
	return Program{Root: cmd}
}

func nodeCommand(role string) *cobra.Command {
	var spec cluster.Spec
	cmd := &cobra.Command{
		Use:   "node --role ROLE --id NAME",
		Short: "Run a prefill or decode node, or one that does both",
		Long: `A node registers with the proxy and serves requests on the modelled GPU of --profile:

  --role prefill   computes the prompts it is given. The KV is real bytes in this
                   process's memory; decode nodes fetch it, or have it written to
                   them layer by layer, over --rail.
  --role decode    generates tokens from KV that a prefill node computed. Blocks are
                   compared with the digests that were made where they were computed
                   (--kv-checks).
  --role both      computes prompts and generates tokens: what disaggregation is
                   measured against.

On SIGTERM or SIGINT it takes no new requests, lets running ones end for
--drain-timeout, deregisters and exits; a second signal ends it at once.

Exit status: 0 it was asked to end; 1 it failed while it ran; 2 bad flags, or an
address, device or amount of memory that this machine has not.

` + cluster.NodeTrust,
		Example: `  # with a proxy on this machine
  kvferry node --role prefill --id prefill-0
  kvferry node --role decode --id decode-0

  # a non-disaggregated node with chunked prefill
  kvferry node --role both --id both-0 --enable-chunked-prefill

  # on a machine of its own, reachable at 10.0.0.2, over two NICs
  kvferry node --role prefill --id prefill-0 --proxy 10.0.0.1:9000 --grpc 10.0.0.2:9100 --rail 10.0.0.2:9101,10.0.1.2:9101
  kvferry node --role prefill --id prefill-1 --proxy 10.0.0.1:9000 --grpc 10.0.0.4:9100 --rail rdma/mlx5_0,rdma/mlx5_1

  # its network paced to the 1.38 GB/s that fit the published TCP runs
  kvferry node --role prefill --id prefill-0 --link tcp`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.Named(spec.Run(cmd.Context(), false, nil), cluster.Names)
		},
	}
	knobs := cluster.Knobs.For(cluster.Node)
	if role != "" {
		if err := knobs.Set(&spec, "role", role); err != nil {
			panic(err) // a constant of this program
		}
	}
	AddGroups(cmd, false, knobs.Flags(&spec, cluster.Node)...)
	return cmd
}
