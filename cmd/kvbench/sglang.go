package main

import (
	"os"

	"github.com/spf13/cobra"

	"kvferry/bench/sglang"
	"kvferry/command"
	"kvferry/config"
)

// sglangCommand is kvbench sglang. Its flags and its help are package bench/sglang's.
func sglangCommand(terminal bool) *cobra.Command {
	cfg := sglang.Config{Command: os.Args}
	cmd := &cobra.Command{
		Use: "sglang", Short: sglang.Short, Long: sglang.Long, Example: sglang.Example, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Stdout, cfg.Progress, cfg.Terminal = resultsFolder(cfg.Out), cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			_, err := sglang.Run(cmd.Context(), cfg)
			return config.Named(err, sglang.FlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&cfg.Out, "out", "", outHelp)
	return cmd
}
