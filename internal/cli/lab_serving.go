package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"kvferry/bench/serving"
	"kvferry/cluster"
)

func servingCommand() *cobra.Command {
	var repeat int
	cmd := &cobra.Command{
		Use:   "serving",
		Short: "Measure what the serving path itself costs",
		Long: `Measure the proxy and a node whose GPU costs nothing (profile zero): CPU time a
streamed token at 32 streams; then, with a GPU that takes 10 ms a step (profile
itl10), the inter-token latency of 1,000 streams at once and the memory they
take. Proxy, node and this client share the machine.

Exit status 1 if a limit is missed.`,
		Example: "  kvferry lab serving --repeat 5",
		Args:    NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			start := func(profile string) func(context.Context) (serving.MeteredCluster, error) {
				return func(ctx context.Context) (serving.MeteredCluster, error) {
					c, err := cluster.Start(ctx, cluster.Spec{Nondisagg: 1, Profile: profile, Log: cmd.ErrOrStderr(), LogLevel: "error"})
					if err != nil {
						return nil, err
					}
					return metered{c}, nil
				}
			}
			return serving.Run(cmd.Context(), serving.Config{
				Burst: start("zero"), Paced: start("itl10"), Repeat: repeat,
				Stdout: cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(),
			})
		},
	}
	cmd.Flags().IntVar(&repeat, "repeat", 3, "runs of each; the medians count")
	Positive(cmd.Flags(), "repeat")
	return cmd
}

// metered is a cluster whose daemons' CPU time and memory can be read.
type metered struct{ *cluster.Cluster }

// Usage is that of each daemon so far; errors of all are joined.
func (m metered) Usage() (list []serving.ProcessUsage, err error) {
	for _, p := range m.Processes() {
		u, e := p.Usage()
		err = errors.Join(err, e)
		list = append(list, serving.ProcessUsage{Name: p.Name, Usage: u})
	}
	return list, err
}
