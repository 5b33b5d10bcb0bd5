package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kvferry/bench/document"
	"kvferry/bench/rail"

	"kvferry/internal/config"
	"kvferry/transport/rails"
)

// checkFlags are the command line of kvferry rail check, of either end.
type checkFlags struct {
	cfg            rail.CheckConfig
	segment, line  string
	wait           bool
	listen, matrix string
	out            string
}

// checkNames are the flags that set the fields of a rail.CheckConfig and of a rail.ServerConfig.
var checkNames = map[string]string{
	"Rails": "--rail", "Server": "HOST", "Segment": "--segment", "Location": "--location", "Matrix": "--matrix", "Duration": "--duration", "Timeout": "--timeout",
	"RailLimits": "--line-rate", "Listen": "--address",
	"Limits.Line": "--min-of-line", "Limits.Best": "--min-of-best", "Limits.Together": "--min-together", "Limits.Lost": "--max-lost", "Limits.Flaps": "--max-carrier", "Limits.Clock": "--max-clock",
}

func checkCommand() *cobra.Command {
	f := checkFlags{cfg: rail.CheckConfig{Limits: rail.DefaultLimits}}
	l := &f.cfg.Limits
	cmd := &cobra.Command{
		Use:   "check [HOST[:PORT]]",
		Short: "Is each rail to another machine fit to serve, and what to do if not",
		Long: `Look at the rails between this machine and another before they serve. Start
kvferry rail check --listen on one machine and kvferry rail check HOST on the other, with the
rails that the nodes will have, in the same order. It takes four seconds a rail on fast
links, up to 40 on slow or lossy ones. Without HOST both ends are on this
machine: rails by memory, and limits of the machine.

For each rail, at both ends:

  carrier      up? how often has it changed, and during the check?
  way          do packets to the other end leave by the rail's own NIC?
  MTU          the same at both ends? does a packet that large arrive, not cut up?
  probes       --probes datagrams as large as a frame: how many are lost?
  congestion   the system's; is bbr there, for a path that loses packets?
  rate         write and read, alone, of the NIC's own speed and of the best rail: of the
               bytes that arrive, from when their rate is steady
  bytes        every block that was moved is compared
  memory       made as a node makes its pool (--segment, --location); may it be pinned?

then all rails together against the sum of each alone, and the clocks: by how much
the other end's is ahead, and how exactly that is known. A table has a row a rail; below
it stand findings, each with what to do. --out keeps all that was seen (check.json) and the report.

The other machine must not be serving: a check takes all that a link can carry. The
--listen end serves one check after another until it is interrupted. It listens at a TCP
port, --address, and at a UDP port a rail for probes while it is checked. It is the same as a
kvferry rail bench --server, which a check may name too. Whoever reaches it may have it map memory: keep it on a network that you trust.

Exit status: 0 no rail fails; 1 one does, or the check could not go on; 2 bad flags;
130 interrupted.`,
		Example: `  kvferry rail check --rail tcp/eth0 --rail tcp/eth1 --listen                # on 10.0.0.1
  kvferry rail check --rail tcp/eth0 --rail tcp/eth1 10.0.0.1               # on 10.0.0.2
  kvferry rail check --rail rdma/mlx5_0 --segment 16g --location cpu:1 10.0.0.1
  kvferry rail check --rail tcp/eth0 10.0.0.1 --line-rate 1gbit --min-of-line 0.9
  kvferry rail check --rail cma                                             # one machine`,
		Args: AtMostOne("HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelError}))
			if f.wait {
				return f.serve(cmd, args, logger)
			}
			cfg, err := f.config(cmd.Flags().Changed, args)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Progress, cfg.Logger = cmd.OutOrStdout(), cmd.ErrOrStderr(), logger
			_, err = rail.Check(cmd.Context(), cfg)
			return config.Named(err, checkNames)
		},
	}
	fs := cmd.Flags()
	fs.Var((*rails.Specs)(&f.cfg.Rails), "rail", "what nodes will move bytes over (required): one, several with commas between them, or the flag again")
	fs.StringVar(&f.segment, "segment", "", "memory at either end; of --listen, the most it gives (default 1g, or an eighth of the machine's)")
	fs.StringVar(&f.cfg.Location, "location", "*", "NUMA node of the memory at this end, cpu:1")
	fs.DurationVar(&f.cfg.Duration, "duration", time.Second, "how long each rate is measured from when it is steady, of a rail, in a direction: longer, up to ten times, where it takes that to be sure")
	fs.IntVar(&f.cfg.Probes, "probes", 1000, "datagrams a rail that are as large as a frame; 0: none")
	fs.DurationVar(&f.cfg.Timeout, "timeout", 10*time.Second, "one batch fails after this long, and so does the other end if it does not answer")
	fs.StringVar(&f.line, "line-rate", "", "speed of every rail, 100gbit, or a list of one for each (default what the NICs say of themselves)")
	fs.Float64Var(&l.Line, "min-of-line", l.Line, "a rail fails whose slower direction has less of its line rate; 0: none does")
	fs.Float64Var(&l.Best, "min-of-best", l.Best, "a rail fails that has less of the best rail's share; 0: none does")
	fs.Float64Var(&l.Together, "min-together", l.Together, "all together fail with less of the sum of each alone; 0: they do not")
	fs.Float64Var(&l.Lost, "max-lost", l.Lost, "share of probes that may be lost; 0: any")
	fs.IntVar(&l.Flaps, "max-carrier", l.Flaps, "changes of a carrier since the machine is up; 0: any number")
	fs.DurationVar(&l.Clock, "max-clock", l.Clock, "that the clocks may be apart; 0: any")
	fs.StringVar(&f.out, "out", "", outHelp)
	fs.BoolVar(&f.wait, "listen", false, "be the other end")
	fs.StringVar(&f.listen, "address", ":"+rail.DefaultPort, "with --listen: host:port to listen at")
	fs.StringVar(&f.matrix, "matrix", "", "with --listen: JSON file with rows that replace those of kvferry rail topo")
	Positive(fs, "duration", "timeout")
	return cmd
}

// config turns flags into a check, or names every flag that is wrong.
func (f *checkFlags) config(changed func(flag string) bool, args []string) (rail.CheckConfig, error) {
	cfg := f.cfg
	var bad config.Faults
	cfg.Command, cfg.Out = os.Args, resultsFolder(f.out)
	if len(args) > 0 {
		cfg.Server = args[0]
	}
	bad.Check("--out", document.CheckNew(cfg.Out))
	Parse(&bad, "--segment", f.segment, &cfg.Segment, config.ParseSize)
	if cfg.Probes < 0 {
		bad.Add("--probes", cfg.Probes, "use 1 or more, or 0 for none")
	} else if cfg.Probes == 0 {
		cfg.Probes = -1
	}
	if f.line != "" {
		cfg.RailLimits = parseRates(&bad, "--line-rate", f.line, "")
		if len(cfg.RailLimits) == 1 {
			cfg.RailLimits = slices.Repeat(cfg.RailLimits, max(1, len(cfg.Rails)))
		}
	}
	refuse(&bad, changed, "it is for --listen: leave it out, or add --listen", "address", "matrix")
	return cfg, Check(bad, cfg.Validate(), checkNames)
}

// serve is kvferry rail check --listen.
func (f *checkFlags) serve(cmd *cobra.Command, args []string, logger *slog.Logger) error {
	var bad config.Faults
	if len(args) > 0 {
		bad.Add("HOST", args[0], "the end that listens waits for others: leave it or --listen out")
	}
	refuse(&bad, cmd.Flags().Changed, "the other end says it: leave it out", "duration", "probes", "timeout", "line-rate", "min-of-line", "min-of-best", "min-together", "max-lost", "max-carrier", "max-clock", "out")
	cfg := rail.ServerConfig{Rails: f.cfg.Rails, Listen: f.listen, Location: f.cfg.Location, Matrix: f.matrix, Log: cmd.ErrOrStderr(), Logger: logger}
	Parse(&bad, "--segment", f.segment, &cfg.Segment, config.ParseSize)
	if err := Check(bad, cfg.Validate(), checkNames); err != nil {
		return err
	}
	l, err := rail.Listen(cfg)
	if err != nil {
		return config.Named(err, checkNames)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "waiting for checks at %s over %s\n", l.Addr(), strings.Join(l.Rails(), ", "))
	if err := l.Serve(cmd.Context()); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil // it was asked to stop
}
