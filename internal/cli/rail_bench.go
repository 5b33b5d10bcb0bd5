package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvferry/bench/rail"

	"kvferry/internal/config"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
)

// transferFlags are the command line of kvferry rail bench, of the client and of the server.
// Sizes and lists are texts until config: they take units and sweeps, which pflag has no
// types for.
type railBenchFlags struct {
	cfg                             rail.Config
	counts, selects                 string
	op, block, batch, threads       string
	depth, segment, slice           string
	limit, format, out, listen      string
	peers, imm, beside, models      string
	latency, perftest, server, once bool
	warmup                          time.Duration
}

func railBenchCommand(terminal bool) *cobra.Command {
	var f railBenchFlags
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

Results go to --out: results.json (all of it), results.csv, table.md and
report.html.
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
		Args: AtMostOne("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.server {
				return f.serve(cmd, args)
			}
			cfg, err := f.config(cmd.Flags().Changed, args)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Terminal = cmd.OutOrStdout(), cmd.ErrOrStderr(), terminal
			cfg.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			_, err = rail.Run(cmd.Context(), cfg)
			return config.Named(err, transferNames)
		},
	}
	f.register(cmd.Flags())
	return cmd
}

// register adds the flags, in the order in which help lists them.
func (f *railBenchFlags) register(fs *pflag.FlagSet) {
	fs.Var((*rails.Specs)(&f.cfg.Rails), "rail", "what to move bytes over (required): one, several with commas between them, or the flag again")
	fs.StringVar(&f.counts, "rails", "", "how many of the rails are used, from the first: a list or a sweep: 1,2,4 (default all)")
	fs.StringVar(&f.selects, "select", "affinity", "how slices are spread over rails: a list of affinity, static, round-robin, single")
	fs.StringVar(&f.op, "op", "write", "write, read or both")
	fs.StringVar(&f.block, "block", "", "bytes of a block: a list, or a sweep that doubles: 4k,64k,1m or 4k:4m (default 1m, or with --latency 8 to 16m, or what --model-kv says)")
	fs.StringVar(&f.batch, "batch", "16", "blocks of a batch: a list or a sweep")
	fs.StringVar(&f.threads, "threads", "1", "threads that submit, each in its own range of the memory: a list or a sweep")
	fs.StringVar(&f.depth, "depth", "4", "batches that each thread has under way: a list or a sweep")
	fs.StringVar(&f.peers, "peers", "1", "initiators at once, each with its own connections: a list or a sweep")
	fs.StringVar(&f.imm, "imm", "", "batches with an immediate: no, yes or both (default no; with --latency both)")
	fs.DurationVar(&f.cfg.Duration, "duration", 2*time.Second, "how long each point is measured")
	fs.IntVar(&f.cfg.Iterations, "iters", 0, "measure this many batches of each thread instead")
	fs.DurationVar(&f.warmup, "warmup", 200*time.Millisecond, "run each point for this long before; 0: it is measured at once")
	fs.StringVar(&f.segment, "segment", "", "memory at either end; of a server, the most it gives (default 1g, or an eighth of the machine's)")
	fs.StringVar(&f.cfg.Location, "location", "*", "NUMA node of the memory at this end, cpu:1: rails near it are preferred (kvferry rail topo shows which)")
	fs.StringVar(&f.cfg.Matrix, "matrix", "", "JSON file with rows that replace those of kvferry rail topo")
	fs.StringVar(&f.slice, "slice", "", "largest piece that a rail carries in one operation (default 1m)")
	fs.DurationVar(&f.cfg.Timeout, "timeout", 10*time.Second, "one batch fails after this long, and so does a target that does not answer")
	fs.BoolVar(&f.cfg.Check, "check", false, "compare every block that was transferred")
	fs.BoolVar(&f.latency, "latency", false, "one batch under way (--depth 1), with one block unless --batch is given: see above")
	fs.StringVar(&f.beside, "beside", "", "with --latency, what else is measured: a list of bare, ucx, iperf3, or none (default bare)")
	fs.StringVar(&f.models, "model-kv", "", "add the sizes of models' KV: a list of config.json files and names ("+strings.Join(rail.LayoutNames(), ", ")+")")
	fs.IntVar(&f.cfg.BlockTokens, "kv-block-tokens", 16, "tokens of a block of KV, for --model-kv")
	fs.StringVar(&f.limit, "limit", "", "line rate of all rails to compare with: 100gbit, 12.5GB/s, none; or a list of one rate for each rail (default what the NICs say of themselves)")
	fs.Uint64Var(&f.cfg.Seed, "seed", 0, "of the order of blocks")
	fs.StringVar(&f.out, "out", "", "folder for the results (default kvferry-out/<time>)")
	fs.StringVar(&f.format, "format", "text", "what is printed: text, json or csv")
	fs.BoolVar(&f.perftest, "perftest", false, "print lines as ib_write_bw does; its MB are 2^20 bytes")
	fs.BoolVar(&f.server, "server", false, "be the target")
	fs.StringVar(&f.listen, "listen", ":"+rail.DefaultPort, "with --server: host:port of the control connection")
	fs.BoolVar(&f.once, "once", false, "with --server: end after one client")
	Positive(fs, "duration", "iters", "timeout", "kv-block-tokens")
}

// transferNames are the flags that set the fields of a Config, a FailoverConfig and a
// ServerConfig.
var transferNames = map[string]string{
	"Rails": "--rail", "Server": "HOST", "Counts": "--rails", "Selects": "--select", "Ops": "--op", "Blocks": "--block", "Batches": "--batch", "Threads": "--threads", "Depths": "--depth",
	"Duration": "--duration", "Iterations": "--iters", "Warmup": "--warmup", "Segment": "--segment", "Location": "--location", "Matrix": "--matrix", "Slice": "--slice", "Timeout": "--timeout",
	"Check": "--check", "Limit": "--limit", "RailLimits": "--limit", "Seed": "--seed", "Out": "--out", "Format": "--format", "Listen": "--listen", "Once": "--once",
	"Peers": "--peers", "Imms": "--imm", "Latency": "--latency", "Beside": "--beside", "Models": "--model-kv", "BlockTokens": "--kv-block-tokens",
	"Sample": "--sample", "Faults": "--fault", "FaultFile": "--faults",
}

// config turns flags into a run, or names every flag that is wrong.
func (f *railBenchFlags) config(changed func(flag string) bool, args []string) (rail.Config, error) {
	cfg := f.cfg
	var bad config.Faults
	cfg.Command, cfg.Out, cfg.Format = os.Args, resultsFolder(f.out), rail.Format(f.format)
	if len(args) > 0 {
		cfg.Server = args[0]
	}
	Parse(&bad, "--rails", f.counts, &cfg.Counts, config.ParseCounts)
	Parse(&bad, "--select", f.selects, &cfg.Selects, parseSelections)
	cfg.Ops = map[string][]transport.Op{"write": {transport.Write}, "read": {transport.Read}, "both": {transport.Write, transport.Read}}[f.op]
	bad.Refuse(cfg.Ops == nil, "--op", f.op, "use write, read or both")
	Parse(&bad, "--block", f.block, &cfg.Blocks, config.ParseSizes)
	f.latencies(&cfg, &bad)
	if f.latency {
		refuse(&bad, changed, "--latency has one batch under way: leave one out", "depth")
		f.depth = "1"
		if !changed("batch") {
			f.batch = "1"
		}
	}
	Parse(&bad, "--batch", f.batch, &cfg.Batches, config.ParseCounts)
	Parse(&bad, "--threads", f.threads, &cfg.Threads, config.ParseCounts)
	Parse(&bad, "--depth", f.depth, &cfg.Depths, config.ParseCounts)
	Parse(&bad, "--peers", f.peers, &cfg.Peers, config.ParseCounts)
	Parse(&bad, "--segment", f.segment, &cfg.Segment, config.ParseSize)
	Parse(&bad, "--slice", f.slice, &cfg.Slice, parseSlice)
	f.limits(&cfg, &bad)
	cfg.Warmup = config.OrNone(f.warmup)
	if changed("duration") {
		refuse(&bad, changed, "given with --duration: leave one out", "iters")
	}
	if f.perftest {
		if changed("format") || f.latency {
			bad.Check("--perftest", errors.New("it prints the lines of ib_write_bw: leave --format and --latency out"))
		}
		cfg.Format = rail.Perftest
	} else if cfg.Format == rail.Perftest {
		bad.Add("--format", f.format, "use text, json or csv, or --perftest")
	}
	refuse(&bad, changed, "it is for --server: leave it out, or add --server", "listen", "once")
	return cfg, Check(bad, cfg.Validate(), transferNames)
}

// latencies reads the flags that are of latencies and of models.
func (f *railBenchFlags) latencies(cfg *rail.Config, bad *config.Faults) {
	cfg.Latency = f.latency
	switch {
	case f.beside == "" && f.latency && !slices.Contains(cfg.Rails, rail.Mem):
		cfg.Beside = []string{rail.Bare}
	case f.beside != "" && f.beside != "none":
		Parse(bad, "--beside", f.beside, &cfg.Beside, rail.ParseReferences)
	}
	imm := cmp.Or(f.imm, map[bool]string{false: "no", true: "both"}[f.latency])
	cfg.Imms = map[string][]bool{"no": {false}, "yes": {true}, "both": {false, true}}[imm]
	bad.Refuse(cfg.Imms == nil, "--imm", f.imm, "use no, yes or both")
	if f.models != "" {
		cfg.Models = ParseAll(bad, "--model-kv", strings.Split(f.models, ","), func(text string) (rail.Layout, error) {
			return rail.ReadLayout(strings.TrimSpace(text))
		})
	}
}

// parseSlice reads the size of a slice in bytes, which a Config has as an int.
func parseSlice(text string) (int, error) {
	n, err := config.ParseSize(text)
	if err == nil && n > transport.MaxSlice {
		err = fmt.Errorf("%q: use up to %s", text, config.FormatSize(transport.MaxSlice))
	}
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// parseSelections reads a list such as affinity,static.
func parseSelections(text string) (all []transport.Selection, err error) {
	for _, name := range strings.Split(text, ",") {
		s, err := transport.ParseSelection(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if slices.Contains(all, s) {
			return nil, fmt.Errorf("%q: given twice: leave one out", s)
		}
		all = append(all, s)
	}
	return all, nil
}

// limits reads --limit: one rate, one for each rail, or none. -1 is none, 0 what the NICs say of themselves.
func (f *railBenchFlags) limits(cfg *rail.Config, bad *config.Faults) {
	switch f.limit {
	case "":
	case "none":
		cfg.Limit = -1
	default:
		if cfg.RailLimits = parseRates(bad, "--limit", f.limit, ", or none"); len(cfg.RailLimits) == 1 {
			cfg.Limit, cfg.RailLimits = cfg.RailLimits[0], nil
		}
	}
}

// parseRates reads a flag's list of rates, in bytes a second. or ends the fault of one that is not above 0.
func parseRates(bad *config.Faults, flag, list, or string) []float64 {
	return ParseAll(bad, flag, strings.Split(list, ","), func(text string) (float64, error) {
		v, err := pacing.ParseRate(text)
		if err == nil && !(v > 0) {
			err = fmt.Errorf("%q: use a rate above 0%s", text, or)
		}
		return v, err
	})
}

// serve is kvferry rail bench --server. What the client chooses is refused here rather than
// ignored.
func (f *railBenchFlags) serve(cmd *cobra.Command, args []string) error {
	var bad config.Faults
	if len(args) > 0 {
		bad.Add("HOST", args[0], "a server waits for clients: leave it or --server out")
	}
	refuse(&bad, cmd.Flags().Changed, "the client says it to the server: leave it out", "rails", "select", "op", "block", "batch", "threads", "depth", "duration", "iters", "warmup", "slice", "timeout", "check", "latency", "beside", "model-kv", "kv-block-tokens", "peers", "imm", "limit", "seed", "out", "format", "perftest")
	cfg := rail.ServerConfig{
		Rails: f.cfg.Rails, Listen: f.listen, Location: f.cfg.Location, Matrix: f.cfg.Matrix, Once: f.once, Log: cmd.ErrOrStderr(),
		Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	Parse(&bad, "--segment", f.segment, &cfg.Segment, config.ParseSize)
	if err := Check(bad, cfg.Validate(), transferNames); err != nil {
		return err
	}
	s, err := rail.Listen(cfg)
	if err != nil {
		return config.Named(err, transferNames)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "serving clients at %s over %s\n", s.Addr(), strings.Join(s.Rails(), ", "))
	if err := s.Serve(cmd.Context()); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // it was asked to stop
}
