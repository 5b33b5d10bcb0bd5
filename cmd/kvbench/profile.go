package main

import (
	"github.com/spf13/cobra"

	"kvferry/bench/profile"
	"kvferry/command"
	"kvferry/config"
)

// profileCommand is kvbench profile. Its flags and its help are package bench/profile's.
func profileCommand() *cobra.Command {
	var cfg profile.Config
	cmd := &cobra.Command{
		Use: "profile", Short: profile.Short, Long: profile.Long, Example: profile.Example, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Stdout = cmd.OutOrStdout()
			return config.Named(profile.Run(cfg), profile.FlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	command.Positive(cmd.Flags(), "tensor-parallel-size", "kv-bytes", "max-num-seqs", "block-size")
	return cmd
}
