package cli

import (
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/rail"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// failoverFlags are the command line of kvferry rail failover. Its default of a
// slice is a quarter of kvferry rail bench's: a sample of 10 ms sees whole ones only, and 1 MiB
// takes 4 ms at 2 Gbit/s.
type failoverFlags struct {
	cfg                        rail.FailoverConfig
	sel, block, slice, segment string
	batch, threads, depth      int
	warmup                     time.Duration
	faults                     []string
	cut, restore, file, out    string
}

func failoverCommand(terminal bool) *cobra.Command {
	var f failoverFlags
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
kvferry rail bench --server there. Results go to --out: failover.json, samples.csv,
table.md and report.html, with the plot.

Exit status: 0 nothing was lost; 1 batches failed, blocks are wrong, or the run could
not go on; 2 bad flags; 130 interrupted (what was measured is kept).`,
		Example: `  kvferry rail failover --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --cut 2s:1 --restore 5s:1
  kvferry rail failover --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --faults faults.jsonl --duration 10s
  kvferry lab net --help                                      # two hosts, and links to cut`,
		Args: AtMostOne("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := f.config(args)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			_, err = rail.Failover(cmd.Context(), cfg)
			return config.Named(err, transferNames)
		},
	}
	fs := cmd.Flags()
	fs.Var((*rails.Specs)(&f.cfg.Rails), "rail", "what to move bytes over (required), as for kvferry rail bench")
	fs.StringVar(&f.sel, "select", "affinity", "how slices are spread over rails: affinity, static, round-robin or single")
	fs.DurationVar(&f.cfg.Duration, "duration", 8*time.Second, "how long")
	fs.StringArrayVar(&f.faults, "fault", nil, "what will happen, and when: see above")
	fs.StringVar(&f.cut, "cut", "", "TIME:RAIL, short for --fault TIME:link-down:RAIL")
	fs.StringVar(&f.restore, "restore", "", "TIME:RAIL, short for --fault TIME:link-up:RAIL")
	fs.StringVar(&f.file, "faults", "", "file of JSON lines that the lab writes of its faults as they happen")
	fs.DurationVar(&f.cfg.Sample, "sample", 10*time.Millisecond, "distance of two readings of the rails' counts")
	fs.StringVar(&f.block, "block", "256k", "bytes of a block")
	fs.IntVar(&f.batch, "batch", 16, "blocks of a batch")
	fs.IntVar(&f.threads, "threads", 1, "threads that submit")
	fs.IntVar(&f.depth, "depth", 8, "batches that each thread has under way")
	fs.StringVar(&f.slice, "slice", "256k", "largest piece that a rail carries in one operation; samples see whole ones")
	fs.StringVar(&f.segment, "segment", "", "memory at either end (default 1g, or an eighth of the machine's)")
	fs.DurationVar(&f.warmup, "warmup", 500*time.Millisecond, "load for this long before it counts; 0: it counts at once")
	fs.DurationVar(&f.cfg.Timeout, "timeout", 30*time.Second, "one batch fails after this long: longer than any fault")
	fs.Uint64Var(&f.cfg.Seed, "seed", 0, "of the order of blocks")
	fs.StringVar(&f.out, "out", "", "folder for the results (default kvferry-out/<time>)")
	Positive(fs, "duration", "sample", "batch", "threads", "depth", "timeout")
	return cmd
}

// config turns flags into a run, or names every flag that is wrong.
func (f *failoverFlags) config(args []string) (rail.FailoverConfig, error) {
	cfg := f.cfg
	var bad config.Faults
	cfg.Command, cfg.Out, cfg.FaultFile = os.Args, resultsFolder(f.out), f.file
	if len(args) > 0 {
		cfg.Server = args[0]
	}
	cfg.Selects = ParseAll(&bad, "--select", []string{f.sel}, transport.ParseSelection)
	cfg.Faults = ParseAll(&bad, "--fault", f.faults, rail.ParseAnnotation)
	for _, short := range []struct{ flag, text, action string }{{"--cut", f.cut, "link-down"}, {"--restore", f.restore, "link-up"}} {
		if short.text == "" {
			continue
		}
		at, name, _ := strings.Cut(short.text, ":")
		if a, err := rail.ParseAnnotation(at + ":" + short.action + ":" + name); err != nil {
			bad.Add(short.flag, short.text, "write TIME:RAIL, like 2s:1")
		} else {
			cfg.Faults = append(cfg.Faults, a)
		}
	}
	cfg.Blocks = ParseAll(&bad, "--block", []string{f.block}, config.ParseSize)
	cfg.Batches, cfg.Threads, cfg.Depths = []int{f.batch}, []int{f.threads}, []int{f.depth}
	Parse(&bad, "--slice", f.slice, &cfg.Slice, parseSlice)
	Parse(&bad, "--segment", f.segment, &cfg.Segment, config.ParseSize)
	cfg.Warmup = config.OrNone(f.warmup)
	return cfg, Check(bad, cfg.Validate(), transferNames)
}
