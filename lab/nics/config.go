package nics

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
	"kvferry/lab"
	"kvferry/lab/wire"
)

// Hosts is how many a lab has.
const Hosts = 2

// Actions are the faults of this lab. A link is slow, cut or a black hole in both
// directions, whichever of its two ends a fault names.
var Actions = append([]lab.Action{lab.Kill, lab.LinkDown, lab.LinkUp, lab.SetRate, lab.SetFlap, lab.BlackHole, lab.Clear}, lab.Conditions...)

// Config describes a lab. The zero value of a field means its default.
//
// A command finds in its environment, besides what this process has in its own,
//
//	KVFERRY_LAB_HOST, KVFERRY_LAB_HOSTS   its host, 1 or 2, and that there are 2
//	KVFERRY_LAB_NICS                links between them
//	KVFERRY_LAB_ADDR_0, ...         address of its own NIC 0, 10.77.0.1 on host 1
//	KVFERRY_LAB_NIC_0, ...          name of its own NIC 0, eth0
//	KVFERRY_LAB_RATE_0, ...         what link 0 is shaped to at the start, in bits a second
//	KVFERRY_LAB_PEER_2_0, ...       address of host 2's NIC 0, on host 1
//	KVFERRY_LAB_PEER                address of the other's NIC 0
//	KVFERRY_LAB_MGMT                address of its own management NIC, 10.78.0.1 on host 1
//	KVFERRY_LAB_MGMT_PEER           address of the other's
//	KVFERRY_LAB_OUT                 folder of this host, see Out
//
// All but KVFERRY_LAB_RATE and KVFERRY_LAB_MGMT mean what they mean in a RoCE lab. Link k is the
// network 10.77.k.0/24; see SharedSubnet for another plan.
type Config struct {
	Rates []int64 // bits a second of each link; at least one

	// Conditions are what the links do to packets, one for each of Rates, or none: then all
	// are clean. Seed is that of their luck, where a relay does it.
	Conditions []wire.Link
	By         By // default ByAuto
	Seed       uint64
	Flaps      []lab.Flap // of the links' cables, from when the commands are let off; one for each of Rates, or none

	MTU     int           // bytes, of every NIC; default 1500
	Burst   int           // bytes that a NIC sends at once; default 256 KiB; see the package on smaller ones
	Latency time.Duration // of a full queue in front of a link; default 50 ms

	// SwitchQueue puts a switch between the hosts: the NICs have no rate, and the ports in front of them
	// have it, with a queue of so many bytes each, and drop what comes then. Default 0: the NICs have the
	// rate, and their queues keep programs from sending more.
	SwitchQueue int
	// Addresses is how many each NIC of host 2 has, which then stands for so many hosts; default 1.
	Addresses int

	// MPTCP has the kernel join all links to an MPTCP connection that was made
	// over link 0: each host announces the addresses of its NICs. A peer
	// connects to them where something listens on all addresses, and goes on to
	// listen after it has accepted.
	MPTCP bool

	// Congestion is the congestion control of TCP connections over the links whose sockets ask for
	// none. Default is the system's.
	Congestion string

	// SharedSubnet puts all NICs into one network, 10.77.0.0/24, with 10.77.0.1,
	// .2, ... on host 1 and .101, .102, ... on host 2, and adds a route for each
	// source address. With NoRoutes as well, nothing is added and ARP answers as
	// Linux does by default on a machine with two NICs in one network: every packet
	// then leaves by eth0, whatever address it is from.
	SharedSubnet, NoRoutes bool

	// Command and its arguments run on both hosts, in this process's working
	// directory. Without one the hosts are idle until the lab is closed.
	Command []string
	Env     []string // K=V

	// Until is the host whose command ends the lab, and whose exit status is the
	// lab's; the other gets SIGTERM and 5 s. With 0 the lab waits for both.
	Until   int
	Timeout time.Duration // of all, from Start on; default 5 min
	Faults  []lab.Fault

	// Out is a folder here: KVFERRY_LAB_OUT of host 1 is Out/host1. Without it, KVFERRY_LAB_OUT
	// is in memory and gone with the lab. The lab writes faults.jsonl into both
	// hosts', a [Record] for each fault.
	Out string

	Stdout, Stderr io.Writer      // the commands' lines, each behind "host1| "; default none
	OnLine         func(lab.Line) // gets each line too, from one goroutine at a time
	Log            io.Writer      // a line for each phase and fault; default none
}

// By is who does to packets what Conditions say.
type By string

// The kernel's netem knows no Seed and counts only what it lost. A relay is a thread of this
// process.
const (
	ByAuto  By = "auto" // netem where the kernel has it, else a relay
	ByNetem By = "netem"
	ByRelay By = "relay"
)

// Limits of a lab.
const (
	maxNICs = 8   // of a server made for this; a machine with more cores than that has real ones
	minMTU  = 576 // of IPv4
	maxMTU  = 65535
	minSize = 2 << 10 // a bucket smaller than a frame sends nothing
	maxSize = 4 << 20 // 17 ms at 2 Gbit/s; a bigger one hides the rate of a short transfer

	// portBurst is what a switch port sends at once: frames one by one, so that its queue is that of
	// packets, at rates up to some Gbit/s.
	portBurst    = 16 << 10
	maxAddresses = 250 // of a network of 256

	leastSwitchQueue = portBurst
	mostSwitchQueue  = 64 << 20 // of a switch with deep buffers, for one port
)

func (c Config) withDefaults() Config {
	config.Default(&c.MTU, 1500)
	config.Default(&c.Burst, 256<<10)
	config.Default(&c.Latency, 50*time.Millisecond)
	config.Default(&c.Timeout, 5*time.Minute)
	config.Default(&c.Addresses, 1)
	config.Default(&c.By, ByAuto)
	return c
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	c = c.withDefaults()
	var bad config.Faults
	switch {
	case len(c.Rates) == 0:
		bad.Add("Rates", nil, "give a rate for each link, as 2gbit,2gbit")
	case len(c.Rates) > maxNICs:
		bad.Add("Rates", formatRates(c.Rates), "these are %d links: use 1 to %d", len(c.Rates), maxNICs)
	}
	for i, r := range c.Rates {
		bad.Refuse(r < 1e5 || r > 1e11, fmt.Sprintf("Rates[%d]", i), lab.FormatRate(r), "use 100kbit to 100gbit")
	}
	config.Between(&bad, "MTU", c.MTU, minMTU, maxMTU)
	if n := len(c.Conditions); n != 0 && n != len(c.Rates) {
		bad.Add("Conditions", nil, "these are of %d links, and there are %d", n, len(c.Rates))
	}
	bad.Refuse(c.By != ByAuto && c.By != ByNetem && c.By != ByRelay, "By", c.By, "use auto, netem or relay")
	for i, l := range c.Conditions {
		bad.Check(fmt.Sprintf("Conditions[%d]", i), l.Validate())
	}
	if n := len(c.Flaps); n != 0 && n != len(c.Rates) {
		bad.Add("Flaps", nil, "these are of %d links, and there are %d", n, len(c.Rates))
	}
	// A bucket that does not hold a frame never sends it; 100 bytes are more than the
	// headers below IP that a frame may have.
	if low := max(minSize, c.MTU+100); c.Burst < low || c.Burst > maxSize {
		bad.Add("Burst", c.Burst, "use %d to %d bytes, which a frame fits in", low, maxSize)
	}
	config.Between(&bad, "Latency", c.Latency, time.Millisecond, 10*time.Second)
	if c.SwitchQueue != 0 {
		config.Between(&bad, "SwitchQueue", c.SwitchQueue, leastSwitchQueue, mostSwitchQueue)
		if len(c.Conditions) > 0 || slices.ContainsFunc(c.Faults, func(f lab.Fault) bool { return slices.Contains(lab.Conditions, f.Action) }) {
			bad.Add("SwitchQueue", c.SwitchQueue, "it is where links are made long or bad, and here they are to be: leave one out")
		}
	}
	bad.Refuse(c.NoRoutes && !c.SharedSubnet, "NoRoutes", true, "it is for links that share a subnet: have them do so, or leave it out")
	config.Between(&bad, "Addresses", c.Addresses, 1, maxAddresses)
	if c.Addresses > 1 && c.SharedSubnet {
		bad.Add("Addresses", c.Addresses, "each link needs a network of its own, and here all share a subnet: leave one out")
	}
	if c.MPTCP && c.SharedSubnet {
		bad.Add("MPTCP", true, "it needs a network for each link, and here all share a subnet: leave one out")
	}
	if c.Congestion != "" && c.SharedSubnet {
		bad.Add("Congestion", c.Congestion, "it is said of the route of each link's network, and here all share a subnet: leave one out")
	}
	config.Between(&bad, "Until", c.Until, 0, Hosts)
	bad.Refuse(c.Timeout < 0, "Timeout", c.Timeout, "use a positive duration")
	if len(c.Command) > 0 {
		if _, err := exec.LookPath(c.Command[0]); err != nil {
			bad.Add("Command", c.Command[0], "it cannot be run: %w", errors.Unwrap(err))
		}
	}
	for _, arg := range c.Command {
		bad.Refuse(strings.ContainsRune(arg, 0), "Command", arg, "it has a zero byte, and no argument can")
	}
	for i, kv := range c.Env {
		bad.Check(fmt.Sprintf("Env[%d]", i), lab.CheckEnv(kv))
	}
	for i, f := range c.Faults {
		nics := len(c.Rates)
		config.Default(&nics, maxNICs) // that there are none is said above
		if err := f.Validate(Hosts, nics, Actions); err != nil {
			bad.Add(fmt.Sprintf("Faults[%d]", i), f, "%w", err)
		}
	}
	return bad.Err("lab/nics.Config")
}

// condition is what a link does to packets at the start.
func (c Config) condition(nic int) wire.Link {
	if len(c.Conditions) == 0 {
		return wire.Link{}
	}
	return c.Conditions[nic]
}

// relayed says that a link is to be bad, now or later.
func (c Config) relayed(nic int) bool {
	return !c.condition(nic).Clean() || slices.ContainsFunc(c.Faults, func(f lab.Fault) bool {
		return f.NIC == nic && slices.Contains(lab.Conditions, f.Action)
	})
}

// ParseRates reads the rates of links, 2gbit,2gbit,500mbit.
func ParseRates(text string) (rates []int64, err error) {
	for _, one := range strings.Split(text, ",") {
		r, err := lab.ParseRate(strings.TrimSpace(one))
		if err != nil {
			return nil, err
		}
		rates = append(rates, r)
	}
	return rates, nil
}

func formatRates(rates []int64) string {
	text := make([]string, len(rates))
	for i, r := range rates {
		text[i] = lab.FormatRate(r)
	}
	return strings.Join(text, ",")
}

var size = regexp.MustCompile(`^([0-9]{1,9})(kb|mb)$`)

// ParseBurst reads a size as tc takes it, 256kb, and returns bytes; a kb is 1024.
func ParseBurst(text string) (int, error) {
	m := size.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q: write a number and kb or mb, as 256kb", text)
	}
	n, err := strconv.Atoi(m[1])
	if n == 0 {
		return 0, fmt.Errorf("%q: a NIC that sends nothing at once sends nothing: use more", text)
	}
	return n * map[string]int{"kb": 1 << 10, "mb": 1 << 20}[m[2]], err
}
