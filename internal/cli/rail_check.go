package cli

import (
	"context"
	"log/slog"
	"slices"

	"github.com/spf13/cobra"

	"kvferry/bench/document"
	"kvferry/bench/rail"
	"kvferry/internal/config"
)

func checkCommand() *cobra.Command {
	f := &railFlags{probes: 1000, check: rail.CheckConfig{Limits: rail.DefaultLimits}}
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
	}
	// A check says itself what a rail would warn of.
	return railRun{role: checking, target: checkTarget, says: "waiting for checks", level: slog.LevelError, settle: settleCheck, run: func(ctx context.Context, f *railFlags) error {
		_, err := rail.Check(ctx, f.check)
		return err
	}}.command(cmd, f, false)
}

func settleCheck(f *railFlags, _ func(flag string) bool, bad *config.Faults) error {
	bad.Check("--out", document.CheckNew(f.Out))
	bad.Refuse(f.probes < 0, "--probes", f.probes, "use 1 or more, or 0 for none")
	f.check.Probes = config.OrNone(f.probes)
	if f.RailLimits = f.limit; len(f.limit) == 1 {
		f.RailLimits = slices.Repeat(f.limit, max(1, len(f.Rails)))
	}
	f.check.Config = f.Config
	return f.check.Validate()
}
