package cli

import (
	"time"

	"github.com/spf13/cobra"

	"kvferry/internal/config"
	"kvferry/lab"
	"kvferry/lab/nics"
	"kvferry/lab/wire"
)

// netFlags are the command line of kvferry lab net.
type netFlags struct {
	cfg          nics.Config
	rates, burst string
	switchQueue  string
	conditions   map[string]*string // by name
	flap         string
	faults       []string
	quiet        bool
}

func netCommand() *cobra.Command {
	var f netFlags
	cmd := &cobra.Command{
		Use:   "net --rates RATE,... [flags] -- COMMAND [ARG...]",
		Short: "Run a command on two hosts joined by links of chosen rates",
		Long: `Make two hosts out of network namespaces, join them by a link for each of --rates,
and run COMMAND on both at the same moment: TCP over several NICs, within a percent
of their rates, without hardware. Its output comes line by line with the host in
front. It takes root and no other program.

COMMAND is a program of this machine, and sees its files. It is not given to a
shell: write sh -c '...' for one. The hosts have processes, /proc and /sys of their
own; their NICs are eth0, eth1, ... and mgmt, which has no rate and is for control
connections. COMMAND finds in its environment

  KVFERRY_LAB_HOST, KVFERRY_LAB_HOSTS   its host, 1 or 2, and that there are 2
  KVFERRY_LAB_NICS                links between them
  KVFERRY_LAB_ADDR_0, ...         address of its own NIC 0; 10.77.0.1 on host 1
  KVFERRY_LAB_NIC_0, ...          name of its own NIC 0, eth0
  KVFERRY_LAB_RATE_0, ...         rate of link 0 at the start, in bits a second
  KVFERRY_LAB_PEER_2_0, ...       address of host 2's NIC 0
  KVFERRY_LAB_PEER                address of the other's NIC 0
  KVFERRY_LAB_MGMT                address of its own NIC mgmt; 10.78.0.1 on host 1
  KVFERRY_LAB_MGMT_PEER           address of the other's
  KVFERRY_LAB_OUT                 its folder in --out; without that it is not kept

A rate is that of frames, in each direction: of 2gbit, TCP carries 1.91 Gbit/s at
an MTU of 1500. Each link is a network of its own, 10.77.0.0/24, 10.77.1.0/24, ...,
so that the address dialled chooses the NIC. --shared-subnet puts them into one and
adds a route for each source address; --no-routes leaves those out, and everything
leaves by eth0, as it does on machines with two NICs in one network by default.

Links are clean, and as short as a cable in a rack. --delay, --jitter, --loss, --reorder,
--duplicate and --corrupt are what tc-netem(8) means by them, of each packet by itself, on
the way between the hosts, and the kernel's netem does them if there is one (--by); --flap pulls
cables. Each takes a value for all links or, with
commas, one for each; and 5ms/20ms is 5 ms for what host 1 sends and 20 ms for host 2.

A --fault is a time from when both hosts run COMMAND, and what happens then, to a
link in both directions:

  2s:link-down:1:0                the cable of NIC 0 is pulled; no carrier at both ends
  4s:link-up:1:0                  and plugged in again
  3s:rate:1:0:200mbit             link 0 has another rate from now on
  3s:black-hole:1:0               link 0 looks well and delivers nothing
  3s:loss:1:0:0.1%                link 0 loses 1 packet in 1,000 from now on; delay, jitter,
                                  reorder, duplicate and corrupt likewise
  3s:delay:2:0:5ms/20ms           what host 2 sends by NIC 0 takes 5 ms, what it receives 20 ms
  3s:flap:1:0:2s                  from now on the cable of NIC 0 is out for 200 ms every 2 s
  5s:clear:1:0                    link 0 is as it was at the start
  3s:kill:2                       host 2 loses power
  after=READY:1s:link-down:1:0    1 s after a command first printed a line with READY

Each is a line of faults.jsonl in KVFERRY_LAB_OUT, with its time in Unix nanoseconds
(unix_ns) and in those of CLOCK_MONOTONIC (monotonic_ns).

Exit status: 0 if both commands returned 0, else that of the first host with another
(with --until, of that host); 2 bad flags; 124 --timeout; 125 the hosts did not come
up; 130 interrupted. A host that a fault killed does not count. However the lab ends,
kill -9 included, no process, interface or namespace is left.`,
		Example: `  kvferry lab net --rates 2gbit,500mbit -- sh -c 'ip -br address; tc qdisc'
  kvferry lab net --rates 2gbit,2gbit --until 1 -- sh -c 'rails="--rail tcp/eth0 --rail tcp/eth1"
    if [ $KVFERRY_LAB_HOST = 2 ]; then exec bin/kvferry rail bench $rails --server --once --listen $KVFERRY_LAB_MGMT:18515; fi
    sleep 1; bin/kvferry rail bench $rails $KVFERRY_LAB_MGMT_PEER:18515 --op write --block 256k --batch 8 --duration 3s --out $KVFERRY_LAB_OUT'
  kvferry lab net --rates 1gbit --fault 500ms:link-down:1:0 --fault 1s:clear:1:0 --out results -- sh -c 'for i in 1 2 3 4 5 6; do cat /sys/class/net/eth0/carrier; sleep 0.25; done'
  kvferry lab net --rates 500mbit,500mbit --delay 10ms,40ms/20ms --loss 0.1%,0 -- sh -c 'if [ $KVFERRY_LAB_HOST = 2 ]; then exec iperf3 -s -1; fi; sleep 1; iperf3 -c $KVFERRY_LAB_PEER'
  kvferry lab net --rates 1gbit,1gbit --shared-subnet --no-routes -- sh -c 'ip route get 10.77.0.102 from $KVFERRY_LAB_ADDR_1'`,
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
			result, err := nics.Run(cmd.Context(), cfg)
			return status(result, err, netNames)
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // what follows COMMAND is its own
	fs.StringVar(&f.rates, "rates", "", "a rate for each link, 1 to 8 of them: 2gbit,2gbit,500mbit")
	f.conditions = make(map[string]*string)
	for _, c := range []struct{ name, usage string }{
		{"delay", "of every packet, one way: 5ms; 5ms/20ms for what host 1 and what host 2 sends; 5ms,5ms,20ms,5ms for each link"},
		{"jitter", "so much more or less than --delay, of each packet by itself: packets overtake others; values as of --delay"},
		{"loss", "share of packets that are lost: 0.1%, and for directions and links as of --delay"},
		{"reorder", "share of packets that are not delayed, and so overtake those that are: 1%"},
		{"duplicate", "share of packets that come twice: 1%"},
		{"corrupt", "share of packets of which one bit is wrong: 1%"},
	} {
		f.conditions[c.name] = fs.String(c.name, "", c.usage)
	}
	fs.StringVar(&f.flap, "flap", "", "the cables are out for a tenth of each such time: 2s, or 2s/500ms for how long; for each link as of --delay")
	fs.StringVar((*string)(&f.cfg.By), "by", string(nics.ByAuto), "who does that to packets: netem, of the kernel; relay, a thread of the lab; auto is netem where the kernel has it")
	fs.Uint64Var(&f.cfg.Seed, "seed", 0, "of the packets' luck, by a relay")
	fs.IntVar(&f.cfg.MTU, "mtu", 1500, "of each NIC")
	fs.StringVar(&f.burst, "burst", "256kb", "what a NIC sends at once; from 128kb, segments of 64 KiB stay whole")
	fs.DurationVar(&f.cfg.Latency, "latency", 50*time.Millisecond, "of a full queue in front of a link, which drops what comes then")
	fs.StringVar(&f.switchQueue, "switch-queue", "", "put a switch between the hosts: NICs have no rate, and the ports in front of them have it, with such a queue: 512kb")
	fs.IntVar(&f.cfg.Addresses, "addresses", 1, "of each NIC of host 2, which stands for so many hosts: 10.77.0.2, 10.77.0.3, ...")
	fs.BoolVar(&f.cfg.MPTCP, "mptcp", false, "the kernel joins all links to each MPTCP connection to who listens on 0.0.0.0")
	fs.StringVar(&f.cfg.Congestion, "congestion", "", "congestion control of TCP connections over the links that ask for none: cubic, bbr (default the system's)")
	fs.BoolVar(&f.cfg.SharedSubnet, "shared-subnet", false, "all links in 10.77.0.0/24, with a route for each source address")
	fs.BoolVar(&f.cfg.NoRoutes, "no-routes", false, "with --shared-subnet: without these routes, and with Linux's ARP as it comes")
	fs.StringArrayVar(&f.cfg.Env, "env", nil, "NAME=VALUE for the command")
	fs.StringArrayVar(&f.faults, "fault", nil, "see above")
	fs.IntVar(&f.cfg.Until, "until", 0, "end with this host's command, and its exit status; the other gets SIGTERM")
	fs.DurationVar(&f.cfg.Timeout, "timeout", 5*time.Minute, "of everything")
	fs.StringVar(&f.cfg.Out, "out", "", "folder for what commands leave in $KVFERRY_LAB_OUT, below host1 and host2")
	fs.BoolVar(&f.quiet, "quiet", false, "no lines about the lab's phases, faults and counters on standard error")
	Positive(fs, "mtu", "latency", "addresses", "timeout")
	return cmd
}

// netNames are the flags that set the fields of a Config. A test holds every field to one.
var netNames = map[string]string{
	"Rates": "--rates", "Conditions": "", "Delay": "--delay", "Jitter": "--jitter", "Loss": "--loss", "Reorder": "--reorder", "Duplicate": "--duplicate", "Corrupt": "--corrupt", "Flaps": "--flap", "By": "--by", "Seed": "--seed", "MTU": "--mtu", "Burst": "--burst", "Latency": "--latency", "SwitchQueue": "--switch-queue", "Addresses": "--addresses", "MPTCP": "--mptcp", "Congestion": "--congestion", "SharedSubnet": "--shared-subnet", "NoRoutes": "--no-routes",
	"Command": "COMMAND", "Env": "--env", "Until": "--until", "Timeout": "--timeout", "Faults": "--fault", "Out": "--out",
}

// config turns flags into a lab; an error names each that is wrong. Output and log are the
// caller's to set.
func (f *netFlags) config(args []string) (nics.Config, error) {
	var bad config.Faults
	cfg := f.cfg
	cfg.Command = args
	bad.Refuse(len(args) == 0 || args[0] == "", "COMMAND", nil, "name what the hosts run")
	Parse(&bad, "--rates", f.rates, &cfg.Rates, nics.ParseRates)
	for _, name := range wire.Names {
		value := *f.conditions[name]
		if value == "" || len(cfg.Rates) == 0 { // without rates there is another fault to name
			continue
		}
		if cfg.Conditions == nil {
			cfg.Conditions = make([]wire.Link, len(cfg.Rates))
		}
		bad.Check("--"+name, wire.ParseLinks(cfg.Conditions, name, value))
	}
	if len(cfg.Rates) > 0 {
		Parse(&bad, "--flap", f.flap, &cfg.Flaps, func(text string) ([]lab.Flap, error) { return lab.ParseFlaps(text, len(cfg.Rates)) })
	}
	Parse(&bad, "--burst", f.burst, &cfg.Burst, nics.ParseBurst)
	Parse(&bad, "--switch-queue", f.switchQueue, &cfg.SwitchQueue, nics.ParseBurst)
	cfg.Faults = faults(&bad, f.faults, nics.Actions)
	return cfg, Check(bad, cfg.Validate(), netNames)
}

// faults reads the texts of --fault, of which the lab has these actions.
func faults(bad *config.Faults, texts []string, actions []lab.Action) []lab.Fault {
	return ParseAll(bad, "--fault", texts, func(text string) (lab.Fault, error) { return lab.ParseFault(text, actions...) })
}
