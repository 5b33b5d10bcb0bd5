package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench/serve"
	"kvferry/bench/sglang"
	"kvferry/cluster"

	"kvferry/internal/config"
)

// A tool is a command whose flags, help and work are a package's.
type tool struct {
	use, short, long, example string
	flags                     func(*pflag.FlagSet)
	names                     map[string]string // its flags by the fields that they set
	run                       func(*cobra.Command) error
}

func (t tool) command() *cobra.Command {
	cmd := &cobra.Command{
		Use: t.use, Short: t.short, Long: t.long, Example: t.example, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return config.Named(t.run(cmd), t.names) },
	}
	t.flags(cmd.Flags())
	return cmd
}

func sglangCommand(terminal bool) *cobra.Command {
	log := new(lazyFile)
	cfg := sglang.Config{Command: os.Args, Start: func(ctx context.Context, servers cluster.Spec) (serve.Cluster, error) {
		servers.Log = log
		return startChildren(ctx, servers, "")
	}}
	cmd := tool{"sglang", sglang.Short, sglang.Long, sglang.Example, cfg.AddFlags, sglang.FlagNames, func(cmd *cobra.Command) error {
		log.dir = resultsFolder(cfg.Out)
		cfg.Out, cfg.Stdout, cfg.Progress, cfg.Terminal = log.dir, cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
		_, err := sglang.Run(cmd.Context(), cfg)
		return err
	}}.command()
	cmd.Flags().StringVar(&cfg.Out, "out", "", outHelp)
	return cmd
}
