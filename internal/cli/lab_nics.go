package cli

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/nics"

	"kvferry/internal/config"
	"kvferry/transport/pacing"
)

// nicsCommand is kvferry lab nics. All that it does is in package bench/nics, limits too, so that a
// test and a person run the same.
func labNICsCommand() *cobra.Command {
	var cfg nics.Config
	cmd := &cobra.Command{
		Use:   "nics",
		Short: nics.Short, Long: nics.Long, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err := nics.Run(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&cfg.Rounds, "rounds", 3, "of each experiment")
	fs.DurationVar(&cfg.Duration, "duration", 1500*time.Millisecond, "how long each rate is measured")
	fs.StringVar(&cfg.Out, "out", "", "folder for nics.json, the report and what each round measured (default none)")
	Positive(fs, "rounds", "duration")
	cmd.AddCommand(nicsMooncakeCommand(), nicsWANCommand(), nicsHandoffCommand())
	return cmd
}

// nicsNames are the flags that set the fields of the configurations of package nics.
var nicsNames = map[string]string{
	"Rounds": "--rounds", "Duration": "--duration", "Out": "--out",
	"Cases": "--cases", "Beside": "--beside", "Warmup": "--warmup",
	"Rate": "--rate", "Counts": "--counts", "Settings": "--settings", "Row": "--row", "Prompts": "--num-prompts",
	"Handoff": "--handoff", "NICs": "--nics", "RTT": "--rtt", "InputLen": "--input-len",
}

func nicsMooncakeCommand() *cobra.Command {
	var cfg nics.MooncakeConfig
	var rate, counts, settings string
	cmd := &cobra.Command{
		Use:   "mooncake",
		Short: nics.MooncakeShort, Long: nics.MooncakeLong, Example: nics.MooncakeExample, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			cfg.Rate = linkRate(&bad, rate)
			Parse(&bad, "--counts", counts, &cfg.Counts, config.ParseCounts)
			cfg.Settings, cfg.Out = strings.Split(settings, ","), resultsFolder(cfg.Out)
			if err := Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err := nics.Mooncake(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&rate, "rate", "2gbit", "of each link")
	fs.StringVar(&counts, "counts", "1,2,4", "NICs: a list")
	fs.StringVar(&settings, "settings", "tcp,layerwise", "settings with two nodes; tcp is the published hand-off, v0")
	fs.StringVar(&cfg.Row, "row", "1024/q2", "workload")
	fs.IntVar(&cfg.Prompts, "num-prompts", 40, "requests a cell")
	fs.StringVar(&cfg.Out, "out", "", "folder for each cell's results (default kvferry-out/<time>)")
	Positive(fs, "num-prompts")
	return cmd
}

// linkRate is what --rate says, in bits a second, as links have it.
func linkRate(bad *config.Faults, text string) int64 {
	bytes, err := pacing.ParseRate(text)
	bad.Check("--rate", err)
	rate := int64(bytes * 8)
	if err == nil && (rate < 1e5 || rate > 1e11) {
		bad.Add("--rate", text, "use 100kbit to 100gbit")
	}
	return rate
}

func nicsHandoffCommand() *cobra.Command {
	var cfg nics.HandoffConfig
	var rate string
	cmd := &cobra.Command{
		Use:   "handoff",
		Short: nics.HandoffShort, Long: nics.HandoffLong, Example: nics.HandoffExample, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			cfg.Rate, cfg.Out = linkRate(&bad, rate), resultsFolder(cfg.Out)
			if err := Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout = cmd.OutOrStdout()
			_, err := nics.Handoff(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cfg.Handoff, "handoff", "layerwise", "layerwise or push, in which the prefill node writes")
	fs.IntVar(&cfg.NICs, "nics", 1, "links")
	fs.StringVar(&rate, "rate", "4gbit", "of each link")
	fs.DurationVar(&cfg.RTT, "rtt", 10*time.Millisecond, "round trip of the links")
	fs.IntVar(&cfg.Prompts, "num-prompts", 50, "how many are asked")
	fs.IntVar(&cfg.InputLen, "input-len", 512, "tokens of a prompt")
	fs.StringVar(&cfg.Out, "out", "", "folder for the client's results (default kvferry-out/<time>)")
	Positive(fs, "nics", "rtt", "num-prompts", "input-len")
	return cmd
}

func nicsWANCommand() *cobra.Command {
	var cfg nics.WANConfig
	var cases string
	cmd := &cobra.Command{
		Use:   "wan",
		Short: nics.WANShort, Long: nics.WANLong, Example: nics.WANExample, Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			var err error
			if slices.Equal(cfg.Beside, []string{"none"}) {
				cfg.Beside = nil
			}
			cfg.Cases, err = nics.ParseWANCases(cases)
			bad.Check("--cases", err)
			if err := Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err = nics.WAN(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&cases, "cases", "", "a list of the names above (default all)")
	fs.IntVar(&cfg.Rounds, "rounds", 5, "of each case")
	fs.DurationVar(&cfg.Duration, "duration", 6*time.Second, "how long each rate is measured")
	fs.DurationVar(&cfg.Warmup, "warmup", 2*time.Second, "before it, for windows to grow")
	fs.StringSliceVar(&cfg.Beside, "beside", []string{"mptcp", "ucx"}, "measure these too, where they are there, or none; no rate may be more than 2 points below the better one")
	fs.StringVar(&cfg.Options, "options", "", "of each rail, as they stand behind the ? of a --rail: congestion=bbr&sndbuf=4194304")
	fs.StringVar(&cfg.Out, "out", "", "folder for wan.json, the report and what each round measured (default none)")
	Positive(fs, "rounds", "duration", "warmup")
	return cmd
}
