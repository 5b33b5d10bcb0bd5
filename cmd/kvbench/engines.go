package main

import (
	"github.com/spf13/cobra"

	"kvferry/bench/engines"
	"kvferry/command"
	"kvferry/config"
)

// enginesCommand is kvbench engines. Its flags and its help are package bench/engines'.
func enginesCommand(terminal bool) *cobra.Command {
	var cfg engines.Config
	cmd := &cobra.Command{
		Use: "engines", Short: engines.Short, Long: engines.Long, Example: engines.Example, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Stdout, cfg.Progress, cfg.Terminal = resultsFolder(cfg.Out), cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			return config.Named(engines.Run(cmd.Context(), cfg), engines.FlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&cfg.Out, "out", "", outHelp)
	command.Positive(cmd.Flags(), "prompts", "rounds", "start-timeout", "timeout")
	return cmd
}
