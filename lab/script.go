package lab

import (
	"fmt"
	"strings"
)

// The ports of a host's virtio-serial device, by number. Port 0 is a console's. They are
// devices of their own and not the console: the kernel's messages would be in between,
// and a console has a line discipline that changes bytes.
const (
	portControl = 1 + iota // lines: ready, exit CODE or fail REASON; back: go, stop
	portStdout
	portStderr
	portOut // one tar archive
)

// quote makes text one word of a shell command.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	return strings.Join(quoted, " ")
}

// functions are what every script begins with. fail tells the lab why, if the control port
// is open by then, and cuts the power; the second before that is for the console's
// and the port's bytes to leave QEMU.
const functions = `#!/bin/sh
export PATH=/lab:/usr/sbin:/usr/bin
fail() {
	echo "kvferry-lab: $*" >/dev/console
	if [ -n "$control" ]; then echo "fail $*" | tr '\n' ' ' >&3; echo >&3; fi
	sleep 1
	poweroff -f
}
# The network device that has an address.
device() {
	for d in /sys/class/net/*; do
		[ "$(cat "$d/address")" != "$1" ] || echo "${d##*/}"
	done
}
must() { "$@" 2>/run/error || fail "$*: $(cat /run/error)"; }
# Devices and addresses come up a moment after the command that makes them.
await() {
	tries=200
	until eval "$1"; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || fail "waited 10 s for $1"
		sleep 0.05
	done
}`

// A shell is a script being written.
type shell struct{ strings.Builder }

func (s *shell) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// must is a command without which the host fails, and its error goes to the lab.
func (s *shell) must(words ...string) { s.line("must %s", quoteAll(words)) }

// script is the init of a host: a shell script that the kernel runs as process 1.
// token ends a command's output; it holds no newline and occurs nowhere else.
//
// The command's output goes through named pipes and cat, not to the ports: a port
// can be opened once only, and shells open /dev/stderr. The token goes through
// the pipe as well, so it comes after all that the command wrote, whether or not
// something that it left running still holds the pipe open.
func (c Config) script(host int, modules, command []string, token string) string {
	var s shell
	s.line("%s", functions)
	s.devices(modules)
	s.must("hostname", hostname(host))
	c.network(&s, host)
	c.run(&s, host, command, token)
	return s.String()
}

// devices mounts the kernel's file systems, loads modules and opens the control port.
func (s *shell) devices(modules []string) {
	s.line("mount -t tmpfs run /run")
	for _, m := range [][]string{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/tmp"},
	} {
		s.must("mkdir", "-p", m[1])
		s.must("mount", "-t", m[0], m[0], m[1])
	}
	s.line("ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr")
	for _, m := range modules {
		s.must("insmod", m)
	}
	s.line("await '[ -c /dev/vport0p%d ]'", portOut)
	s.line("exec 3<>/dev/vport0p%d", portControl)
	s.line("control=yes")
}

// network names the NICs, gives them their addresses and shapes, and an RDMA device each.
func (c Config) network(s *shell, host int) {
	s.must("ip", "link", "set", "lo", "up")
	// Two PCI buses come up in any order, and so do the NICs on them.
	for nic := range c.NICs {
		s.line("await '[ -n \"$(device %s)\" ]'", mac(host, nic))
		s.line(`must ip link set dev "$(device %s)" name nic%d`, mac(host, nic), nic)
	}
	for nic := range c.NICs {
		s.must("ip", "link", "set", "dev", fmt.Sprintf("nic%d", nic), "name", fmt.Sprintf("eth%d", nic))
	}
	for nic := range c.NICs {
		dev := fmt.Sprintf("eth%d", nic)
		s.must("ip", "link", "set", dev, "mtu", fmt.Sprint(c.MTU), "up")
		s.must("ip", "address", "add", address(host, nic)+"/24", "broadcast", "+", "dev", dev)
		for _, args := range c.shaping(dev) {
			s.must(append([]string{"tc"}, args...)...)
		}
		s.must("rdma", "link", "add", fmt.Sprintf("rxe%d", nic), "type", "rxe", "netdev", dev)
	}
	for nic := range c.NICs {
		port := fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1", nic)
		s.line(`await 'case $(cat %s/state) in *ACTIVE*) ;; *) false ;; esac'`, port)
		s.line(`await 'case $(cat %s/gids/1 2>/dev/null) in *ffff:*) ;; *) false ;; esac'`, port)
	}
}

// run has the command wait to be let off, run, and say how it ended.
func (c Config) run(s *shell, host int, command []string, token string) {
	s.line("mkdir -p %s /root /lab; mkfifo /run/stdout /run/stderr", outFolder)
	s.line("cat /run/stdout >/dev/vport0p%d 3>&- &", portStdout)
	s.line("cat /run/stderr >/dev/vport0p%d 3>&- &", portStderr)
	s.line("exec 4<>/run/stdout 5<>/run/stderr")
	s.line("ulimit -l unlimited")
	for _, kv := range c.environment(host) {
		s.line("export %s", quote(kv))
	}
	s.line("cd /lab")
	s.line("echo ready >&3")
	s.line("read -r word <&3")
	// A session of its own, for stop to reach all of it.
	s.line(`(read -r word <&3; kill -TERM "-$(cat /run/pid)") 4>&- 5>&- &`)
	s.line(`setsid /bin/sh -c 'echo $$ >/run/pid; exec "$@"' kvferry-lab %s </dev/null >&4 2>&5 3>&- 4>&- 5>&-`, quoteAll(command))
	s.line("code=$?")
	s.line("printf %s >&4; printf %[1]s >&5", token)
	if c.Out != "" {
		s.line("tar -cf - -C %s . >/dev/vport0p%d", outFolder, portOut)
	}
	s.line(`echo "exit $code" >&3`)
	// The host stays on its networks until the lab is over; what is not read on
	// a port yet would be lost with it, too.
	s.line("while :; do sleep 1000; done")
}
