package nics

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"kvferry/lab"
)

// Hosts is how many a lab has.
const Hosts = 2

// Actions are the faults of this lab. A link is slow, cut or a black hole in both
// directions, whichever of its two ends a fault names.
var Actions = []lab.Action{lab.Kill, lab.LinkDown, lab.LinkUp, lab.SetRate, lab.BlackHole, lab.Clear}

// Config describes a lab. The zero value of a field means its default.
//
// A command finds in its environment, besides what this process has in its own,
//
//	KVLAB_HOST, KVLAB_HOSTS   its host, 1 or 2, and that there are 2
//	KVLAB_NICS                links between them
//	KVLAB_ADDR_0, ...         address of its own NIC 0, 10.77.0.1 on host 1
//	KVLAB_NIC_0, ...          name of its own NIC 0, eth0
//	KVLAB_RATE_0, ...         what link 0 is shaped to at the start, in bits a second
//	KVLAB_PEER_2_0, ...       address of host 2's NIC 0, on host 1
//	KVLAB_PEER                address of the other's NIC 0
//	KVLAB_MGMT                address of its own management NIC, 10.78.0.1 on host 1
//	KVLAB_MGMT_PEER           address of the other's
//	KVLAB_OUT                 folder of this host, see Out
//
// All but KVLAB_RATE and KVLAB_MGMT mean what they mean in a RoCE lab. Link k is the
// network 10.77.k.0/24; see SharedSubnet for another plan.
type Config struct {
	Rates []int64 // bits a second of each link; at least one

	MTU     int           // of every NIC; default 1500
	Burst   int           // bytes that a NIC sends at once; default 256 KiB
	Latency time.Duration // of a full queue in front of a link; default 50 ms

	// MPTCP has the kernel join all links to an MPTCP connection that was made
	// over link 0: each host announces the addresses of its NICs. A peer
	// connects to them where something listens on all addresses, and goes on to
	// listen after it has accepted.
	MPTCP bool

	// SharedSubnet puts all NICs into one network, 10.77.0.0/24, with 10.77.0.1,
	// .2, ... on host 1 and .101, .102, ... on host 2, and adds a route for each
	// source address. With NoRoutes as well, nothing is added and ARP answers as
	// Linux does by default: every packet then leaves by eth0, whatever address it
	// is from. That is the trap that machines with two NICs in one network are.
	SharedSubnet, NoRoutes bool

	// Command and its arguments run on both hosts, in this process's working
	// directory. Without one the hosts are idle until the lab is closed.
	Command []string
	Env     []string // K=V

	// Until is the host whose command ends the lab, and whose exit status is the
	// lab's; the other gets SIGTERM and 5 s. With 0 the lab waits for both.
	Until   int
	Timeout time.Duration // of all; default 5 min
	Faults  []lab.Fault

	// Out is a folder here: KVLAB_OUT of host 1 is Out/host1. Without it, KVLAB_OUT
	// is in memory and gone with the lab. The lab writes faults.jsonl into both
	// hosts', a [Record] for each fault.
	Out string

	Stdout, Stderr io.Writer      // the commands' lines, each behind "host1| "; default none
	OnLine         func(lab.Line) // gets each line too, from one goroutine at a time
	Log            io.Writer      // a line for each phase and fault; default none
}

// Limits of a lab.
const (
	maxNICs = 8   // of a server made for this; a machine with more cores than that has real ones
	minMTU  = 576 // of IPv4
	maxMTU  = 65535
	minSize = 2 << 10 // a bucket smaller than a frame sends nothing
	maxSize = 4 << 20
)

func (c Config) withDefaults() Config {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MTU, 1500)
	set(&c.Burst, 256<<10)
	if c.Latency == 0 {
		c.Latency = 50 * time.Millisecond
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Minute
	}
	return c
}

// Validate lists every fault. Each begins with the field.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	bad := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s %w", field, fmt.Errorf(format, args...)))
	}
	switch {
	case len(c.Rates) == 0:
		bad("Rates", "is empty: give a rate for each link, as 2gbit,2gbit")
	case len(c.Rates) > maxNICs:
		bad("Rates", "has %d links: use 1 to %d", len(c.Rates), maxNICs)
	}
	for i, r := range c.Rates {
		if r < 1e5 || r > 1e11 {
			bad("Rates", "has %d bit/s for link %d: use 100kbit to 100gbit", r, i)
		}
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		bad("MTU", "is %d: use %d to %d", c.MTU, minMTU, maxMTU)
	}
	// A bucket that does not hold a frame never sends it.
	switch low := max(minSize, c.MTU+100); {
	case c.Burst < low || c.Burst > maxSize:
		bad("Burst", "is %d bytes: use %d to %d, a frame fits in", c.Burst, low, maxSize)
	}
	if c.Latency < time.Millisecond || c.Latency > 10*time.Second {
		bad("Latency", "is %v: use 1ms to 10s", c.Latency)
	}
	if c.NoRoutes && !c.SharedSubnet {
		bad("NoRoutes", "is for links in one network: set SharedSubnet too")
	}
	if c.MPTCP && c.SharedSubnet {
		bad("MPTCP", "needs a network for each link: leave SharedSubnet out")
	}
	if c.Until < 0 || c.Until > Hosts {
		bad("Until", "is %d: use 0 to %d", c.Until, Hosts)
	}
	if c.Timeout < 0 {
		bad("Timeout", "is %v: use a positive duration", c.Timeout)
	}
	if len(c.Command) > 0 {
		if _, err := exec.LookPath(c.Command[0]); err != nil {
			bad("Command", "cannot be run: %w", err)
		}
	}
	for _, text := range c.Command {
		if strings.ContainsRune(text, 0) {
			bad("Command", "has a zero byte in %q: no argument can", text)
		}
	}
	for _, kv := range c.Env {
		switch err := lab.CheckEnv(kv); {
		case err != nil:
			bad("Env", "%w", err)
		case strings.ContainsRune(kv, 0):
			bad("Env", "has a zero byte in %q: no variable can", kv)
		}
	}
	for _, f := range c.Faults {
		if err := f.Validate(Hosts, len(c.Rates), Actions); err != nil {
			bad("Faults", "has %q: %w", f, err)
		}
	}
	return errors.Join(faults...)
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

var size = regexp.MustCompile(`^([0-9]{1,9})(kb|mb)$`)

// ParseBurst reads a size as tc takes it, 256kb, and returns bytes; a kb is 1024.
func ParseBurst(text string) (int, error) {
	m := size.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("burst %q: write a number and kb or mb, as 256kb", text)
	}
	n, err := strconv.Atoi(m[1])
	return n * map[string]int{"kb": 1 << 10, "mb": 1 << 20}[m[2]], err
}
