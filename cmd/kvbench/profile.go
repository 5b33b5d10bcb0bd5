package main

import (
	"github.com/spf13/cobra"

	"kvferry/bench/profile"
	"kvferry/command"
	"kvferry/internal/config"
)

// profileCommand is kvbench profile. Its flags and its help are package bench/profile's.
func profileCommand(terminal bool) *cobra.Command {
	var cfg profile.Config
	cmd := &cobra.Command{
		Use: "profile", Short: profile.Short, Long: profile.Long, Example: profile.Example, Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			if cfg.Measuring.Profile != "" {
				refuse(&bad, cmd.Flags().Changed, "with --profile nothing is fitted, and nothing written: leave it out", profile.Fitting...)
			}
			if err := bad.Err(""); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			return config.Named(profile.Run(cmd.Context(), cfg), profile.FlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	command.Needs(cmd.Flags(), profile.Needs)
	command.Positive(cmd.Flags(), "tensor-parallel-size", "kv-bytes", "max-num-seqs", "block-size", "known-itl", "known-itl-context", "known-ttft", "known-ttft-tokens", "rounds", "num-prompts", "random-input-len", "random-output-len")
	return cmd
}
