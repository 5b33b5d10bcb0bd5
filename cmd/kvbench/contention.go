package main

import (
	"github.com/spf13/cobra"

	"kvferry/bench/contention"
	"kvferry/command"
	"kvferry/config"
)

// contentionCommand is kvbench contention. Its flags and its help are package bench/contention's.
func contentionCommand() *cobra.Command {
	var cfg contention.Config
	cmd := &cobra.Command{
		Use: "contention", Short: contention.Short, Long: contention.Long, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return config.Named(contention.Run(cmd.Context(), cfg, cmd.OutOrStdout()), contention.FlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	return cmd
}
