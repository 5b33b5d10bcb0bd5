package cli

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/rail"
	"kvferry/internal/config"
)

func failoverCommand(terminal bool) *cobra.Command {
	f := &railFlags{warmup: 500 * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "failover [HOST[:PORT]]",
		Short: "What the other rails do while one is cut, slowed or silent, and how soon",
		Long: `Load several rails, sample what each completes while something else harms their
links, and say for each fault how long it took

  detect      until the engine said that the rail's path is down, stalled or up again
  recovered   until the rails moved 95 % of their ideal over the next half second; of
              a rail that is back, until it moved 90 % of what it did before
  gap         longest time in which nothing completed on any rail
  resent      bytes that were posted again

The ideal is what each rail did before the first fault, less what the fault took.
At the end every byte of the target's memory is compared with the last round of
writes, each round with other bytes: so a block is found that was lost, that was
written again later, or that was written to another address.

kvferry harms no link itself: the NIC lab does. Either the lab writes a file that says
when (--faults), or you say it beforehand (--fault, --cut, --restore). Times count
from the line LOADING on standard output, so that a lab can wait for it
(after=LOADING:2s:link-down:1:0).

  --fault 2s:link-down:1       rail 1, from 0, loses its link two seconds in
  --fault 5s:link-up:1         and has it back
  --fault 2s:rate:1:200mbit    it has 200 Mbit/s from then on
  --fault 2s:black-hole:1      it looks well and delivers nothing
  --fault 5s:clear:1           as at first
  --cut 2s:1 --restore 5s:1    link-down and link-up, in short

The target is as for kvferry rail bench: a child process, or with HOST a
kvferry rail bench --server there. Results go to --out: failover.json with all
samples, table.md and report.html, with the plot.

Exit status: 0 nothing was lost; 1 batches failed, blocks are wrong, or the run could
not go on; 2 bad flags; 130 interrupted (what was measured is kept).`,
		Example: `  kvferry rail failover --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --cut 2s:1 --restore 5s:1
  kvferry rail failover --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --faults faults.jsonl --duration 10s
  kvferry lab net --help                                      # two hosts, and links to cut`,
	}
	return railRun{role: failingOver, level: slog.LevelWarn, settle: settleFailover, run: func(ctx context.Context, f *railFlags) error {
		_, err := rail.Failover(ctx, f.failover)
		return err
	}}.command(cmd, f, terminal)
}

func settleFailover(f *railFlags, _ func(flag string) bool, bad *config.Faults) error {
	f.Warmup = config.OrNone(f.warmup)
	f.failover.Config = f.Config
	f.failover.Faults = slices.Concat(ParseAll(bad, "--fault", f.faults, rail.ParseAnnotation), f.cut, f.restore)
	return f.failover.Validate()
}
