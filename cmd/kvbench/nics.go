package main

import (
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/nics"
	"kvferry/bench/size"
	"kvferry/command"
	"kvferry/config"
	"kvferry/transport/pacing"
)

// nicsCommand is kvbench nics. All that it does is in package bench/nics, limits too, so that a
// test and a person run the same.
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
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err := nics.Run(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.IntVar(&cfg.Rounds, "rounds", 3, "of each experiment")
	fs.DurationVar(&cfg.Duration, "duration", 1500*time.Millisecond, "how long each rate is measured")
	fs.StringVar(&cfg.Out, "out", "", "folder for nics.json and each round's failover report (default none)")
	command.Positive(fs, "rounds", "duration")
	cmd.AddCommand(nicsMooncakeCommand(), nicsWANCommand(), nicsHandoffCommand(), nicsIncastCommand(), incastTargetCommand(), incastLoadCommand())
	return cmd
}

// nicsNames are the flags that set the fields of the configurations of package nics.
var nicsNames = map[string]string{
	"Rounds": "--rounds", "Duration": "--duration", "Out": "--out",
	"Cases": "--cases", "Beside": "--beside", "Warmup": "--warmup",
	"Rate": "--rate", "Counts": "--counts", "Settings": "--settings", "Row": "--row", "Prompts": "--num-prompts",
	"Ops": "--op", "Initiators": "--initiators", "SwitchQueue": "--switch-queue",
	"Handoff": "--handoff", "NICs": "--nics", "RTT": "--rtt", "InputLen": "--input-len",
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
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			var err error
			cfg.Rate = linkRate(&bad, rate)
			cfg.Counts, err = size.ParseCounts(counts)
			bad.Check("--counts", err)
			cfg.Settings, cfg.Out = strings.Split(settings, ","), resultsFolder(cfg.Out)
			if err := command.Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err = nics.Mooncake(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
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
	command.Positive(fs, "num-prompts")
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
		Short: "A cluster over long links: when the second token comes, held to a bound",
		Long: `Serve prompts with proxy and prefill node on host 1 of the NIC lab and a decode node on
host 2, over links with a round trip of --rtt, the control plane too. The prompts are asked
one after the other, for two tokens. Compute is modelled; the transfer is what the links
carry. The second token, median of all, must come within

  prefill + 2 round trips + wire of the last part + one decode step

where a part is a layer (layerwise) or all of the KV (push). Two round trips leave none for
asking the decode node first: the last line says how many prompts went ahead of that, by the
proxy's metrics. It needs root, and proxy, prefill and decode beside kvbench (make build).

Exit status: 0 the second token is within the bound; 1 it is not, or the run could not go on;
2 bad flags; 130 interrupted.`,
		Example: `  make build && bin/kvbench nics handoff
  bin/kvbench nics handoff --nics 2 --rate 2gbit --rtt 40ms`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			cfg.Rate, cfg.Out = linkRate(&bad, rate), resultsFolder(cfg.Out)
			if err := command.Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout = cmd.OutOrStdout()
			_, err := nics.Handoff(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&cfg.Handoff, "handoff", "layerwise", "layerwise or push, in which the prefill node writes")
	fs.IntVar(&cfg.NICs, "nics", 1, "links")
	fs.StringVar(&rate, "rate", "4gbit", "of each link")
	fs.DurationVar(&cfg.RTT, "rtt", 10*time.Millisecond, "round trip of the links")
	fs.IntVar(&cfg.Prompts, "num-prompts", 50, "how many are asked")
	fs.IntVar(&cfg.InputLen, "input-len", 512, "tokens of a prompt")
	fs.StringVar(&cfg.Out, "out", "", "folder for the client's results (default kvbench-out/<time>)")
	command.Positive(fs, "nics", "rtt", "num-prompts", "input-len")
	return cmd
}

func nicsWANCommand() *cobra.Command {
	var cfg nics.WANConfig
	var cases string
	cmd := &cobra.Command{
		Use:   "wan",
		Short: "Four NICs over links that are long or lose packets, held to limits",
		Long: `Measure four rails together in the NIC lab, on links of 500 Mbit/s that are long, lose
packets, reorder them or fall silent (kvlab nics --help), and hold the figures to limits. It
takes root.

  near, rtt10, rtt20, rtt40, rtt100   round trips of 2, 10, 20, 40 and 100 ms, no loss
  loss-one, loss-all, loss-much       0.1 % of packets lost on one link, on all; 1 % on one
  mixed                               1000, 500, 500 and 250 Mbit/s, the fast one loses 0.1 %
  jitter                              one link jitters and reorders
  far                                 one link has a round trip of 40 ms, the others 2 ms
  holes                               the links are black holes in turn
  silent                              a black hole both ways and each way, at a round trip of 0.4 ms:
                                      when it is found, when the link has its share again
  flaps                               ten flaps in a minute: when the link has its share again

Beside the rails, on links of their own of the same kind, with congestion control cubic: one MPTCP
connection over all links, and UCX (ucx_perftest, puts over four rails), if they are there.

A rate is a percentage of the ideal payload rate, 1448/1514 of the links' rates; each runs in a lab of
its own, in turns with the others, and a figure is the median of --rounds. The links take CPU
time too. A round in which the CPUs were all busy, or the hypervisor took some, or the links lost
packets for that, is measured once more, and then left out; a figure with fewer than half of its
rounds left is marked disturbed, and says nothing of the rails.

Exit status: 0 every figure is within its limit; 1 one is not, or was disturbed, or the run
could not go on; 2 bad flags; 130 interrupted (the table is of what was measured).`,
		Example: `  kvbench nics wan --cases rtt40,loss-one --rounds 1
  kvbench nics wan --cases loss-all --options congestion=bbr`,
		Args: command.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			var err error
			if slices.Equal(cfg.Beside, []string{"none"}) {
				cfg.Beside = nil
			}
			cfg.Cases, err = nics.ParseWANCases(cases)
			bad.Check("--cases", err)
			if err := command.Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err = nics.WAN(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&cases, "cases", "", "a list of the names above (default all)")
	fs.IntVar(&cfg.Rounds, "rounds", 5, "of each case")
	fs.DurationVar(&cfg.Duration, "duration", 6*time.Second, "how long each rate is measured")
	fs.DurationVar(&cfg.Warmup, "warmup", 2*time.Second, "before it, for windows to grow")
	fs.StringSliceVar(&cfg.Beside, "beside", []string{"mptcp", "ucx"}, "measure these too, where they are there, or none; no rate may be more than 2 points below the better one")
	fs.StringVar(&cfg.Options, "options", "", "of each rail, as they stand behind the ? of a --rail: congestion=bbr&sndbuf=4194304")
	fs.StringVar(&cfg.Out, "out", "", "folder for wan.json and the failover reports (default none)")
	command.Positive(fs, "rounds", "duration", "warmup")
	return cmd
}
