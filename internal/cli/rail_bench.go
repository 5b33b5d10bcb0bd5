package cli

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/rail"
	"kvferry/internal/config"
	"kvferry/transport/rails"
)

func railBenchCommand(terminal bool) *cobra.Command {
	f := &railFlags{warmup: 200 * time.Millisecond}
	cmd := &cobra.Command{
		Use:   "bench [HOST[:PORT]]",
		Short: "How fast a rail moves bytes: rate, latency and CPU of the transfer engine",
		Long: `Move blocks between two memories with the transfer engine, over one rail or
several, and measure it. Nothing is modelled.

  without HOST   both ends on this machine; the target is a child process
  with HOST      the target is a kvferry rail bench --server there
  --server       be the target: serve one client after another

A rail (--rail, repeated or with commas for several, which are aggregated):

` + rails.Help([2]string{rail.Mem, "memory to memory in one process"}) + `
A point is measured for each of --rails (the first n that are given), --select, op,
block, batch, threads and depth; "% by rail" is the share that each rail has carried.
--select says how slices are spread over several rails:

  affinity      to the one expected to finish it first, by what it has under way and
                the rate it was seen to deliver, among those close to the memory
  static        an equal share of every batch to each
  round-robin   in turn
  single        the first that is up; the others stand by

A rate counts the batches that completed while the point was measured (--duration);
transfers are under way when that begins and when it ends. With --iters it counts all
batches, until the last has completed. Latency is that of a batch, from Submit until
the initiator knows that its bytes are at the destination (ib_write_lat prints
half a round trip instead). "post" is the time that Submit itself takes. CPU is that
of both processes, with what the bench needs in them. ops/s are blocks. --check fills
the source anew for each point and compares every block that was transferred. Sizes
are in powers of 1024, GB are 1e9 bytes.

--latency moves one block at a time, 8 bytes to 16 MiB, with an immediate and without.
A latency is then from the call of Submit until its caller knows that the bytes are at
the destination. Beside it (--beside) are measured, over the same NIC in the same run:

  bare     a ping by blocking sockets, our own code as C would have it: a block there
           and a byte back, or for read the other way; it walks the same memory
  ucx      ucx_perftest: ucp_put_lat, which is half a round trip with both ends
           spinning; ucp_get with one outstanding. Its buffer stays in the caches
  iperf3   the rate of one TCP stream in writes of that size; it has no latency

What is not installed at both ends is named below the table. A percentile that fewer
than 10 samples lie beyond is marked (~); one that none lies beyond is left out (-):
p99.9 takes 10,000 samples. --peers has n initiators move at once, each with its own
connections, and says how evenly they share the target: least by most, and Jain's
index (1 is evenly, 1/n if one has it all). --model-kv adds the sizes that KV of a model
has: a token and a block of --kv-block-tokens, of one layer and of all.

Results go to --out: results.json (all of it), table.md and report.html. --format csv
prints the table for a spreadsheet.
Client and server must be the same version; whoever reaches a server may have it
map memory and write there, and start ucx_perftest and iperf3 as servers, so keep it
on a network that you trust.

Exit status: 0 all points sound; 1 batches failed, blocks are wrong, or the run
could not go on (the points that had ended are kept); 2 bad flags;
130 interrupted (the points that had ended are kept). A server that is interrupted
exits 0.`,
		Example: `  kvferry rail bench --rail tcp/lo --op both --block 4k,64k,1m --batch 16 --check
  kvferry rail bench --rail tcp/eth0 --server                       # on 10.0.0.1
  kvferry rail bench --rail tcp/eth0 10.0.0.1 --block 4k:4m         # on another machine
  kvferry rail bench --rail rdma/mlx5_0 10.0.0.1 --block 2:8m --batch 1 --depth 128 --perftest
  kvferry rail bench --rail rdma/mlx5_0 10.0.0.1 --latency --beside bare,ucx
  kvferry rail bench --rail tcp/eth0 10.0.0.1 --latency --op both --model-kv llama-3.1-8b
  kvferry rail bench --rail tcp/eth0 10.0.0.1 --block 64k --batch 1 --peers 1,16,256
  kvferry rail bench --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --limit 200gbit
  kvferry rail bench --rail tcp/eth0 --rail tcp/eth1 10.0.0.1 --rails 1,2 --select affinity,static
  kvferry rail bench --rail mem --threads 1:8`,
	}
	return railRun{role: benching, target: benchTarget, says: "serving clients", level: slog.LevelWarn, settle: settleBench, run: func(ctx context.Context, f *railFlags) error {
		_, err := rail.Run(ctx, f.Config)
		return err
	}}.command(cmd, f, terminal)
}

func settleBench(f *railFlags, given func(flag string) bool, bad *config.Faults) error {
	f.Warmup = config.OrNone(f.warmup)
	if f.Latency {
		refuse(bad, given, "--latency has one batch under way: leave one out", "depth")
		if f.Beside == nil && !slices.Contains(f.Rails, rail.Mem) {
			f.Beside = []string{rail.Bare}
		}
		if f.Imms == nil {
			f.Imms = []bool{false, true}
		}
	}
	switch len(f.limit) {
	case 0:
	case 1:
		f.Limit = f.limit[0]
	default:
		f.RailLimits = f.limit
	}
	if given("duration") {
		refuse(bad, given, "given with --duration: leave one out", "iters")
	}
	if f.perftest {
		if given("format") || f.Latency {
			bad.Check("--perftest", errors.New("it prints the lines of ib_write_bw: leave --format and --latency out"))
		}
		f.Format = rail.Perftest
	} else if f.Format == rail.Perftest {
		bad.Add("--format", f.Format, "use text, json or csv, or --perftest")
	}
	return f.Config.Validate()
}
