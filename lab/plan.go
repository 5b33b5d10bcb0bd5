package lab

import (
	"fmt"
	"strconv"
	"time"
)

// Hosts count from 1, NICs from 0, and both are bytes of addresses. NIC i of all hosts is
// one network.

func address(host, nic int) string { return fmt.Sprintf("10.0.%d.%d", nic, host) }

// mac is locally administered, in the range that QEMU's own addresses have.
func mac(host, nic int) string { return fmt.Sprintf("52:54:00:6b:%02x:%02x", nic, host) }

func hostname(host int) string { return "host" + strconv.Itoa(host) }

// outFolder is $KVFERRY_LAB_OUT.
const outFolder = "/out"

// environment is what the command of a host finds set, as K=V.
func (c Config) environment(host int) []string {
	env := []string{
		"HOME=/root", "TERM=dumb", "LANG=C.UTF-8",
		fmt.Sprintf("KVFERRY_LAB_HOST=%d", host),
		fmt.Sprintf("KVFERRY_LAB_HOSTS=%d", c.Hosts),
		fmt.Sprintf("KVFERRY_LAB_NICS=%d", c.NICs),
		"KVFERRY_LAB_OUT=" + outFolder,
	}
	for nic := range c.NICs {
		env = append(env, fmt.Sprintf("KVFERRY_LAB_ADDR_%d=%s", nic, address(host, nic)),
			fmt.Sprintf("KVFERRY_LAB_NIC_%d=eth%[1]d", nic), fmt.Sprintf("KVFERRY_LAB_RDMA_%d=rxe%[1]d", nic))
	}
	for peer := 1; peer <= c.Hosts; peer++ {
		if peer == host {
			continue
		}
		for nic := range c.NICs {
			env = append(env, fmt.Sprintf("KVFERRY_LAB_PEER_%d_%d=%s", peer, nic, address(peer, nic)))
		}
	}
	if c.Hosts == 2 {
		env = append(env, "KVFERRY_LAB_PEER="+address(3-host, 0))
	}
	return append(env, c.Env...)
}

// shaping returns the arguments of the tc commands for a network device: netem on
// top, which drops and delays, and below it tbf, which sends at the rate. Either
// stands alone if the other is not asked for.
//
// tbf queues 50 ms of packets and drops more, as a switch port would. A burst of
// 64 kb is 6.4 ms at 80 Mbit/s; a token bucket must hold what comes in between two
// timer ticks, 4 ms (Debian's kernels have HZ=250), so it grows with the rate.
//
// netem holds back what it delays, and drops what is above its limit: 20,000 packets of
// 4200 bytes are 8.4 s at 80 Mbit/s, where its default of 1000 is 0.4 s.
func (c Config) shaping(device string) [][]string {
	var commands [][]string
	parent := []string{"root"}
	if c.Delay > 0 || c.Loss > 0 {
		netem := []string{"qdisc", "add", "dev", device, "root", "handle", "1:", "netem", "limit", "20000"}
		if c.Delay > 0 {
			netem = append(netem, "delay", strconv.FormatInt(int64(c.Delay/time.Microsecond), 10)+"us")
		}
		if c.Loss > 0 {
			netem = append(netem, "loss", strconv.FormatFloat(c.Loss*100, 'f', -1, 64)+"%")
		}
		commands = append(commands, netem)
		parent = []string{"parent", "1:1", "handle", "10:"}
	}
	if c.Rate > 0 {
		burst := max(64<<10, c.Rate/8*4/1000)
		tbf := append([]string{"qdisc", "add", "dev", device}, parent...)
		tbf = append(tbf, "tbf", "rate", strconv.FormatInt(c.Rate, 10)+"bit", "burst", strconv.FormatInt(burst, 10), "latency", "50ms")
		commands = append(commands, tbf)
	}
	return commands
}
