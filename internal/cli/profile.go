package cli

import (
	"github.com/spf13/cobra"

	"kvferry/bench/calibrate"

	"kvferry/internal/config"
)

// profileCommand is kvferry profile. Its flags and its help are package calibrate's.
func profileCommand(terminal bool) *cobra.Command {
	var cfg calibrate.ProfileConfig
	cmd := &cobra.Command{
		Use: "profile", Short: calibrate.Short, Long: calibrate.ProfileLong, Example: calibrate.Example, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			if cfg.Measuring.Profile != "" {
				refuse(&bad, cmd.Flags().Changed, "with --profile nothing is fitted, and nothing written: leave it out", calibrate.FittingFlags...)
			}
			if err := bad.Err(""); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			return config.Named(calibrate.RunProfile(cmd.Context(), cfg), calibrate.ProfileFlagNames)
		},
	}
	cfg.AddFlags(cmd.Flags())
	Needs(cmd.Flags(), calibrate.ProfileNeeds)
	Positive(cmd.Flags(), "tensor-parallel-size", "kv-bytes", "max-num-seqs", "block-size", "known-itl", "known-itl-context", "known-ttft", "known-ttft-tokens", "rounds", "num-prompts", "random-input-len", "random-output-len")
	return cmd
}
