package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/nics"
)

func nicsCommand() *cobra.Command {
	var cfg nics.Config
	cmd := &cobra.Command{
		Use:   "nics",
		Short: "Several NICs in the NIC lab: rate, selection, failover, held to limits",
		Long: `Run the experiments on several NICs in the NIC lab, two network namespaces of this
machine joined by shaped links (it takes root), and hold their figures to limits:

  transfer    1, 2 and 4 links of 2 Gbit/s, blocks of 1 MiB and of 64 KiB
  selection   links of 4, 2, 2 and 1 Gbit/s: affinity, static, round-robin, single
  MPTCP       the kernel's aggregation, on the same links
  failover    four links under load: one is cut and restored, one slows to a tenth,
              one turns into a black hole; every byte is checked

Figures are medians of --rounds. The last line is the efficiency of each: percent of
the ideal payload rate, 1448/1514 of the links' rates.

Exit status: 0 every figure is within its limit; 1 one is not, or the run could not
go on; 2 bad flags; 130 interrupted (the tables are of what was measured).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Rounds == 0 || cfg.Duration == 0 {
				return usageError{fmt.Errorf("--rounds %d, --duration %v: use 1 round and 100ms or more", cfg.Rounds, cfg.Duration)}
			}
			if err := cfg.Validate(); err != nil {
				return usageError{fmt.Errorf("%s", strings.NewReplacer("nics: Config.Rounds", "--rounds", "nics: Config.Duration", "--duration").Replace(err.Error()))}
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err := nics.Run(cmd.Context(), cfg)
			return err
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&cfg.Rounds, "rounds", 3, "of each experiment")
	fs.DurationVar(&cfg.Duration, "duration", 1500*time.Millisecond, "how long each rate is measured")
	fs.StringVar(&cfg.Out, "out", "", "folder for nics.json and each round's failover report (default none)")
	return cmd
}
