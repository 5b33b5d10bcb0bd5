package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/nics"
	"kvferry/bench/transfer"
	"kvferry/transport"
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
	cmd.AddCommand(nicsMooncakeCommand())
	return cmd
}

func nicsMooncakeCommand() *cobra.Command {
	var cfg nics.MooncakeConfig
	var rate, counts, settings string
	cmd := &cobra.Command{
		Use:   "mooncake",
		Short: "A published workload over 1, 2 and 4 NICs: TTFT and TPOT on real links",
		Long: `Serve a workload of Mooncake's table with a prefill node on host 1 of the NIC lab
and a decode node on host 2, their KV over 1, 2 and 4 shaped links, proxy and
clients on the management link. Compute is modelled; the transfer is what the links
carry. It needs root, and proxy, prefill and decode beside kvbench (make build).

Exit status: 0 all cells sound; 1 a cell has faults; 2 bad flags; 130 interrupted.`,
		Example: `  make build && bin/kvbench nics mooncake
  bin/kvbench nics mooncake --rate 1gbit --counts 1,2 --settings tcp --row 256/q4 --num-prompts 200`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad faults
			bytes, err := transport.ParseRate(rate)
			bad.add("rate", err)
			cfg.Rate = int64(bytes * 8)
			cfg.Counts, err = transfer.ParseCounts(counts)
			bad.add("counts", err)
			cfg.Settings = strings.Split(settings, ",")
			if cfg.Prompts < 1 {
				bad.add("num-prompts", fmt.Errorf("%d: use 1 or more", cfg.Prompts))
			}
			if cfg.Out == "" {
				cfg.Out = filepath.Join("kvbench-out", time.Now().Format("20060102-150405"))
			}
			if len(bad) == 0 {
				if err := cfg.Validate(); err != nil {
					bad = append(bad, errors.New(strings.NewReplacer("nics: MooncakeConfig.Rate", "--rate", "nics: MooncakeConfig.Counts", "--counts",
						"nics: MooncakeConfig.Settings", "--settings", "nics: MooncakeConfig.Row", "--row").Replace(err.Error())))
				}
			}
			if len(bad) > 0 {
				return usageError{errors.Join(bad...)}
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err = nics.Mooncake(cmd.Context(), cfg)
			return err
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&rate, "rate", "2gbit", "of each link")
	fs.StringVar(&counts, "counts", "1,2,4", "NICs: a list")
	fs.StringVar(&settings, "settings", "tcp,layerwise", "settings with two nodes; tcp is the published hand-off, v0")
	fs.StringVar(&cfg.Row, "row", "1024/q2", "workload")
	fs.IntVar(&cfg.Prompts, "num-prompts", 40, "requests a cell")
	fs.StringVar(&cfg.Out, "out", "", "folder for each cell's results (default kvbench-out/<time>)")
	return cmd
}
