package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"kvferry/internal/config"
)

// Config describes a lab. The zero value of a field means its default.
//
// A command finds in its environment
//
//	KVFERRY_LAB_HOST, KVFERRY_LAB_HOSTS   its host, from 1, and how many there are
//	KVFERRY_LAB_NICS                NICs of each host
//	KVFERRY_LAB_ADDR_0, ...         address of its own NIC 0, 10.0.0.1 on host 1
//	KVFERRY_LAB_NIC_0, ...          name of its own NIC 0, eth0
//	KVFERRY_LAB_RDMA_0, ...         RDMA device of its own NIC 0, rxe0
//	KVFERRY_LAB_PEER_2_0, ...       address of host 2's NIC 0, for all other hosts and all NICs
//	KVFERRY_LAB_PEER                with two hosts, the address of the other's NIC 0
//	KVFERRY_LAB_OUT                 folder whose content comes back, see Out
//
// and NIC i of all hosts on one network, 10.0.i.0/24, which others do not reach.
// GID index 1 of an RDMA device is its RoCE v2 address.
type Config struct {
	Hosts int // default 2
	NICs  int // of each host; default 2

	Rate  int64         // bits a second that a NIC sends; 0 is unshaped
	Delay time.Duration // one way: a round trip takes twice as long
	Loss  float64       // share of packets that a NIC drops as it sends, 0 to 1: 0.01 is 1 %
	MTU   int           // bytes; default 4200: RoCE's largest MTU is 4096, and its headers stay below 100

	// NUMA gives a host two sockets of two CPUs, with half of the memory each, and
	// spreads the NICs over both: the first half of them is near node 0.
	NUMA   bool
	Memory int // MiB of a host; default 768
	CPUs   int // of a host; default 1, with NUMA always 4

	// Modules of the kernel that the hosts load, by name, beside those that a lab needs.
	Modules []string

	// Command and its arguments run on every host, in /lab. A command with a slash
	// in it is a file here and is copied; others are looked up in the host's PATH,
	// then here.
	Command []string
	Files   []File
	Env     []string // K=V

	// Until is the host whose command ends the lab, and whose exit status is the
	// lab's; the others get SIGTERM and 5 s. With 0 the lab waits for all.
	Until   int
	Timeout time.Duration // of all, boot included; default 5 min
	Faults  []Fault

	// Out is a folder here: what the command leaves in $KVFERRY_LAB_OUT of host 1 is
	// in Out/host1 afterwards. What a host that died had written is lost: its disk
	// is its memory.
	Out string

	Stdout, Stderr io.Writer  // the commands' lines, each behind "host1| "; default none
	OnLine         func(Line) // gets each line too, from one goroutine at a time
	Log            io.Writer  // a line for each phase and fault; default none

	// Cache is the folder of the kernel, see [Setup]. Default kvferry/lab below
	// os.UserCacheDir.
	Cache string
}

// File is a file or folder to copy into every host. The default of To is the
// base name of From in /lab, which is in the command's PATH and its working
// directory.
type File struct{ From, To string }

// ParseFile reads PATH or PATH:GUESTPATH.
func ParseFile(text string) (File, error) {
	from, to, found := strings.Cut(text, ":")
	f := File{From: from, To: to}
	if found && to == "" {
		return f, fmt.Errorf("%q: it ends in a colon: write PATH or PATH:GUESTPATH", text)
	}
	return f, f.validate()
}

func (f File) validate() error {
	switch {
	case f.From == "":
		return errors.New("none given: write PATH or PATH:GUESTPATH")
	case f.To != "" && !path.IsAbs(f.To):
		return fmt.Errorf("%q: it goes to %q, which is not absolute: write /lab/%[2]s", f.From, f.To)
	}
	if _, err := os.Stat(f.From); err != nil {
		return fmt.Errorf("%q: there is no such file here: %w", f.From, err)
	}
	return nil
}

// Limits of a lab. Addresses would allow 254 hosts and 256 NICs; QEMU's PCI bus
// has 32 slots, and no machine that needs a lab has memory for more hosts.
const (
	maxHosts = 16
	maxNICs  = 8
	minMTU   = 1280 // of IPv6, whose link-local address is GID 0
	maxMTU   = 9216
	minMiB   = 256 // what a 6.12 kernel and 30 MB of initramfs boot in
)

var moduleName = regexp.MustCompile(`^[a-z0-9_]+$`)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (c Config) withDefaults() Config {
	config.Default(&c.Hosts, 2)
	config.Default(&c.NICs, 2)
	config.Default(&c.MTU, 4200)
	config.Default(&c.Memory, 768)
	if c.NUMA {
		config.Default(&c.CPUs, 4)
	}
	config.Default(&c.CPUs, 1)
	config.Default(&c.Timeout, 5*time.Minute)
	for _, w := range []*io.Writer{&c.Stdout, &c.Stderr, &c.Log} {
		config.Default(w, io.Discard)
	}
	return c
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	c = c.withDefaults()
	var bad config.Faults
	config.Between(&bad, "Hosts", c.Hosts, 1, maxHosts)
	config.Between(&bad, "NICs", c.NICs, 1, maxNICs)
	config.Between(&bad, "MTU", c.MTU, minMTU, maxMTU)
	config.Between(&bad, "Memory", c.Memory, minMiB, 64<<10)
	config.Between(&bad, "CPUs", c.CPUs, 1, 16)
	config.Between(&bad, "Until", c.Until, 0, c.Hosts)
	config.Between(&bad, "Delay", c.Delay, 0, 10*time.Second)
	config.Between(&bad, "Loss", c.Loss, 0, 1)
	bad.Refuse(c.NUMA && c.CPUs != 4, "CPUs", c.CPUs, "hosts with two sockets have 4: leave it out")
	bad.Refuse(c.Rate != 0 && !rateInRange(c.Rate), "Rate", FormatRate(c.Rate), "use 100kbit to 100gbit, or none")
	bad.Refuse(c.Timeout < 0, "Timeout", c.Timeout, "use a positive duration")
	bad.Refuse(len(c.Command) == 0 || c.Command[0] == "", "Command", nil, "name what the hosts run")
	for i, name := range c.Modules {
		bad.Refuse(!moduleName.MatchString(name), fmt.Sprintf("Modules[%d]", i), name, "write a module's name, as veth")
	}
	for _, arg := range c.Command {
		bad.Refuse(strings.ContainsRune(arg, 0), "Command", arg, "it has a zero byte, and no argument can")
	}
	for i, f := range c.Files {
		bad.Check(fmt.Sprintf("Files[%d]", i), f.validate())
	}
	for i, kv := range c.Env {
		bad.Check(fmt.Sprintf("Env[%d]", i), CheckEnv(kv))
	}
	for i, f := range c.Faults {
		if err := f.Validate(c.Hosts, c.NICs, Actions); err != nil {
			bad.Add(fmt.Sprintf("Faults[%d]", i), f, "%w", err)
		}
	}
	return bad.Err("lab.Config")
}

// CheckEnv holds NAME=VALUE for a command to what a lab lets one set. A name is what a
// shell can export, since a host's init is a shell script.
func CheckEnv(kv string) error {
	switch name, _, found := strings.Cut(kv, "="); {
	case !found || !envName.MatchString(name):
		return fmt.Errorf("%q: write NAME=VALUE", kv)
	case strings.HasPrefix(name, "KVFERRY_LAB_"):
		return fmt.Errorf("%q: the lab sets %s itself: choose another name", kv, name)
	case strings.ContainsRune(kv, 0):
		return fmt.Errorf("%q: it has a zero byte, and no variable can", kv)
	}
	return nil
}

// rateInRange: below 100 kbit/s a 64 KiB frame takes 5 s, above 100 Gbit/s no
// machine emulates a NIC.
func rateInRange(bits int64) bool { return bits >= 1e5 && bits <= 1e11 }

var rate = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(k|m|g)bit$`)

// ParseRate reads a rate as NICs are sold and tc takes it, 80mbit or 2.5gbit, and
// returns bits a second. k, m and g are powers of 1000, as with tc and NICs.
func ParseRate(text string) (int64, error) {
	m := rate.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q: write a number and kbit, mbit or gbit, as 80mbit", text)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil || v > 1e9 {
		return 0, fmt.Errorf("%q: it is out of range: use 100kbit to 100gbit", text)
	}
	return int64(v*map[string]float64{"k": 1e3, "m": 1e6, "g": 1e9}[m[2]] + 0.5), nil
}

// FormatRate writes bits a second as ParseRate reads them.
func FormatRate(bits int64) string {
	unit, text := 1e3, "kbit"
	switch {
	case bits >= 1e9:
		unit, text = 1e9, "gbit"
	case bits >= 1e6:
		unit, text = 1e6, "mbit"
	}
	return strconv.FormatFloat(float64(bits)/unit, 'f', -1, 64) + text
}

// ParseLoss reads a share of packets, 1% or 0.5%, and returns it as 0 to 1. The sign is
// required: 1 could be meant as all or as 1 %.
func ParseLoss(text string) (float64, error) {
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !percent || !(v >= 0 && v <= 100) {
		return 0, fmt.Errorf("%q: write 0%% to 100%%, as 1%%", text)
	}
	return v / 100, nil
}
