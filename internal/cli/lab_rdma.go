package cli

import (
	"time"

	"github.com/spf13/cobra"

	"kvferry/internal/config"
	"kvferry/lab"
)

// roceFlags are the command line of kvferry lab rdma.
type roceFlags struct {
	cfg           lab.Config
	rate, loss    string
	files, faults []string
	quiet         bool
}

func rdmaCommand() *cobra.Command {
	var f roceFlags
	cmd := &cobra.Command{
		Use:   "rdma [flags] -- COMMAND [ARG...]",
		Short: "Run a command on hosts with RoCE NICs",
		Long: `Boot hosts with software RoCE NICs, NIC i of all hosts on one network, and run
COMMAND on each of them at the same moment. Its output comes line by line with
the host in front.

COMMAND is a file here if there is a slash in it, and is copied to the hosts with
the libraries it is linked with; otherwise it is a program of theirs: a shell and
busybox, ip, tc, rdma, perftest's ib_write_bw and others. It is not given to a
shell: write sh -c '...' for one. It starts in /lab, where --file puts files, and
finds in its environment

  KVFERRY_LAB_HOST, KVFERRY_LAB_HOSTS   its host, from 1, and how many there are
  KVFERRY_LAB_NICS                NICs of each host
  KVFERRY_LAB_ADDR_0, ...         address of its own NIC 0; 10.0.0.1 on host 1
  KVFERRY_LAB_NIC_0, ...          name of its own NIC 0, eth0
  KVFERRY_LAB_RDMA_0, ...         RDMA device of its own NIC 0, rxe0
  KVFERRY_LAB_PEER_2_0, ...       address of host 2's NIC 0
  KVFERRY_LAB_PEER                with two hosts, the address of the other's NIC 0
  KVFERRY_LAB_OUT                 folder whose content --out brings back

GID index 1 is the RoCE v2 address. Emulation is slow: an unshaped NIC moves about
0.5 Gbit/s and keeps a core busy, so shape NICs with --rate and compare ratios.

A --fault is a time from when all hosts run COMMAND, and what happens then:

  3s:kill:2                       host 2 loses power
  2s:link-down:1:0                the cable of host 1's NIC 0 is pulled
  4s:link-up:1:0                  and plugged in again
  after=READY:1s:kill:2           1 s after a command first printed a line with READY

Exit status: 0 if all commands returned 0, else that of the first host with
another (with --until, of that host); 2 bad flags; 124 --timeout; 125 a host did
not come up or died without a fault; 130 interrupted. Hosts that a fault killed do
not count.`,
		Example: `  kvferry lab rdma -- ibv_devinfo
  kvferry lab rdma --rate 80mbit -- sh -c 'if [ $KVFERRY_LAB_HOST = 1 ]; then ib_write_bw -d rxe0 -x 1 -F; else sleep 1; ib_write_bw -d rxe0 -x 1 -F $KVFERRY_LAB_PEER; fi'
  kvferry lab rdma --until 2 --file server.json --out results -- ./program -c server.json
  kvferry lab rdma --delay 1ms --loss 1% -- ping -c 20 10.0.0.2
  kvferry lab rdma --hosts 3 --fault after=READY:1s:kill:3 --timeout 2m -- ./program`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := f.config(args)
			if err != nil {
				return err
			}
			cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if !f.quiet {
				cfg.Log = cmd.ErrOrStderr()
			}
			result, err := lab.Run(cmd.Context(), cfg)
			return status(result, err, roceNames)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows COMMAND is its own
	fs.IntVar(&f.cfg.Hosts, "hosts", 2, "hosts, 1 to 16")
	fs.IntVar(&f.cfg.NICs, "nics", 2, "NICs of each host, 1 to 8")
	fs.StringVar(&f.rate, "rate", "", "what each NIC sends at most: 80mbit (default unshaped)")
	fs.DurationVar(&f.cfg.Delay, "delay", 0, "delay of each packet, one way, like 1ms; 0: none")
	fs.StringVar(&f.loss, "loss", "", "share of packets that each NIC loses: 1%")
	fs.IntVar(&f.cfg.MTU, "mtu", 4200, "of each NIC; 4200 gives RoCE its MTU of 4096")
	fs.BoolVar(&f.cfg.NUMA, "numa", false, "two sockets with two CPUs each, and the NICs spread over both")
	fs.IntVar(&f.cfg.Memory, "memory", 768, "MiB of each host")
	fs.IntVar(&f.cfg.CPUs, "cpus", 0, "of each host (default 1; with --numa always 4)")
	fs.StringArrayVar(&f.cfg.Modules, "module", nil, "a module of the kernel that the hosts load, beside those that a lab needs: veth")
	fs.StringArrayVar(&f.files, "file", nil, "PATH or PATH:GUESTPATH of a file or folder to copy; without GUESTPATH it goes to /lab")
	fs.StringArrayVar(&f.cfg.Env, "env", nil, "NAME=VALUE for the command")
	fs.StringArrayVar(&f.faults, "fault", nil, "see above")
	fs.IntVar(&f.cfg.Until, "until", 0, "end with this host's command, and its exit status; the others get SIGTERM")
	fs.DurationVar(&f.cfg.Timeout, "timeout", 5*time.Minute, "of everything, boot included")
	fs.StringVar(&f.cfg.Out, "out", "", "folder for what commands leave in $KVFERRY_LAB_OUT, below host1, host2, ...")
	fs.BoolVar(&f.quiet, "quiet", false, "no lines about the lab's phases and faults on standard error")
	fs.StringVar(&f.cfg.Cache, "cache", "", "folder of the kernel (default kvferry/lab in the user's cache folder)")
	Positive(fs, "hosts", "nics", "mtu", "memory", "cpus", "timeout")
	return cmd
}

// roceNames are the flags that set the fields of a Config. A test holds every field to one.
var roceNames = map[string]string{
	"Hosts": "--hosts", "NICs": "--nics", "Rate": "--rate", "Delay": "--delay", "Loss": "--loss", "MTU": "--mtu", "NUMA": "--numa", "Memory": "--memory", "CPUs": "--cpus", "Modules": "--module",
	"Command": "COMMAND", "Files": "--file", "Env": "--env", "Until": "--until", "Timeout": "--timeout", "Faults": "--fault", "Out": "--out", "Cache": "--cache",
}

// config turns flags into a lab; an error names each that is wrong. Output and log are the
// caller's to set.
func (f *roceFlags) config(args []string) (lab.Config, error) {
	var bad config.Faults
	cfg := f.cfg
	cfg.Command = args
	Parse(&bad, "--rate", f.rate, &cfg.Rate, lab.ParseRate)
	Parse(&bad, "--loss", f.loss, &cfg.Loss, lab.ParseLoss)
	cfg.Files = ParseAll(&bad, "--file", f.files, lab.ParseFile)
	cfg.Faults = faults(&bad, f.faults, lab.Actions)
	return cfg, Check(bad, cfg.Validate(), roceNames)
}
