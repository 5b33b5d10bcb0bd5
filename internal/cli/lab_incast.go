package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/incast"
	"kvferry/bench/nics"

	"kvferry/internal/config"
)

func nicsIncastCommand() *cobra.Command {
	var cfg nics.IncastConfig
	var rate, queue string
	cmd := &cobra.Command{
		Use:   "incast",
		Short: "Many initiators and one target whose NIC they share, held to limits",
		Long: `Have many initiators move blocks to or from one target in the NIC lab at once (it takes root),
each with an engine, an address and a megabyte under way, and measure how evenly they share the
target's NIC, and how long 4 KiB of one more, the probe, take meanwhile:

  write          all share the queue of one NIC, which holds each of them back
  write-switch   they meet at a switch port in front of the target; what its queue of --switch-queue
                 does not hold is dropped
  read           they meet where the target sends
  read-switch    likewise, and behind that is a switch port, with a queue as above

A rate is a percentage of the ideal payload rate, 1448/1514 of the NIC's. least/most is what the
initiator got that got least, by what the one got that got most; Jain's index is 1 if all got the
same, and 1/n if one got all: there are limits for some of these. A figure is the median of --rounds; a round in which the machine could
not carry the links is measured once more, and then left out.

Exit status: 0 every figure is within its limit; 1 one is not, or was disturbed, or the run
could not go on; 2 bad flags; 130 interrupted (the table is of what was measured).`,
		Example: `  kvferry lab nics incast --op read --rounds 1
  kvferry lab nics incast --initiators 64 --rate 1gbit --switch-queue 256k`,
		Args: NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var bad config.Faults
			cfg.Rate = linkRate(&bad, rate)
			held, err := config.ParseSize(queue)
			bad.Check("--switch-queue", err)
			cfg.SwitchQueue = int(held)
			if err := Check(bad, cfg.Validate(), nicsNames); err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress = cmd.OutOrStdout(), cmd.ErrOrStderr()
			_, err = nics.Incast(cmd.Context(), cfg)
			return config.Named(err, nicsNames)
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&cfg.Ops, "op", []string{"write", "read"}, "write, read or both")
	fs.IntVar(&cfg.Initiators, "initiators", 16, "besides the probe")
	fs.StringVar(&rate, "rate", "500mbit", "of the target's NIC, in each direction")
	fs.StringVar(&queue, "switch-queue", "512k", "bytes that the switch port in front of the target holds")
	fs.IntVar(&cfg.Rounds, "rounds", 3, "of each case")
	fs.DurationVar(&cfg.Duration, "duration", 6*time.Second, "how long each is measured")
	fs.DurationVar(&cfg.Warmup, "warmup", 2*time.Second, "before it, for windows to grow")
	fs.StringVar(&cfg.Options, "options", "", "of each rail, as they stand behind the ? of a --rail: congestion=bbr")
	fs.StringVar(&cfg.Out, "out", "", "folder for incast.json and the report (default none)")
	Positive(fs, "initiators", "rounds", "duration", "warmup")
	return cmd
}

// incastTargetCommand is what kvferry lab nics incast runs on host 1.
func incastTargetCommand() *cobra.Command {
	return &cobra.Command{
		Use: nics.IncastTarget + " ADDRESS INITIATORS OPTIONS", Hidden: true, Args: cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil {
				return err
			}
			return incast.Serve(cmd.Context(), args[0], args[2], n, cmd.OutOrStdout())
		},
	}
}

// incastLoadCommand is what it runs on host 2.
func incastLoadCommand() *cobra.Command {
	return &cobra.Command{
		Use: nics.IncastLoad + " LOAD", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var l incast.Load
			if err := json.Unmarshal([]byte(args[0]), &l); err != nil {
				return err
			}
			s, err := l.Run(cmd.Context())
			if err != nil {
				return err
			}
			text, err := json.Marshal(s)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			}
			return err
		},
	}
}
