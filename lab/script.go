package lab

import (
	"fmt"
	"strings"
)

// The ports of a host's virtio-serial device, by number. Port 0 is a console's.
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

// script is the init of a host: a shell script that the kernel runs as process 1.
// token ends a command's output; it holds no newline and occurs nowhere else.
//
// The command's output goes through named pipes and cat, not to the ports: a port
// can be opened once only, and shells open /dev/stderr. The token goes through
// the pipe as well, so it comes after all that the command wrote, whether or not
// something that it left running still holds the pipe open.
func (c Config) script(host int, modules, command []string, token string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	must := func(words ...string) { line("must %s", quoteAll(words)) }

	line("#!/bin/sh")
	line("export PATH=/lab:/usr/sbin:/usr/bin")
	line(`fail() {
	echo "kvlab: $*" >/dev/console
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
}`)
	line("mount -t tmpfs run /run")
	for _, m := range [][]string{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"devpts", "/dev/pts"},
		{"tmpfs", "/dev/shm"},
		{"tmpfs", "/tmp"},
	} {
		must("mkdir", "-p", m[1])
		must("mount", "-t", m[0], m[0], m[1])
	}
	line("ln -s /proc/self/fd /dev/fd; ln -s fd/0 /dev/stdin; ln -s fd/1 /dev/stdout; ln -s fd/2 /dev/stderr")
	for _, m := range modules {
		must("insmod", m)
	}
	line("await '[ -c /dev/vport0p%d ]'", portOut)
	line("exec 3<>/dev/vport0p%d", portControl)
	line("control=yes")
	must("hostname", hostname(host))
	must("ip", "link", "set", "lo", "up")
	// Two PCI buses come up in any order, and so do the NICs on them.
	for nic := range c.NICs {
		line("await '[ -n \"$(device %s)\" ]'", mac(host, nic))
		line(`must ip link set dev "$(device %s)" name nic%d`, mac(host, nic), nic)
	}
	for nic := range c.NICs {
		must("ip", "link", "set", "dev", fmt.Sprintf("nic%d", nic), "name", fmt.Sprintf("eth%d", nic))
	}
	for nic := range c.NICs {
		dev := fmt.Sprintf("eth%d", nic)
		must("ip", "link", "set", dev, "mtu", fmt.Sprint(c.MTU), "up")
		must("ip", "address", "add", address(host, nic)+"/24", "broadcast", "+", "dev", dev)
		for _, args := range c.shaping(dev) {
			must(append([]string{"tc"}, args...)...)
		}
		must("rdma", "link", "add", fmt.Sprintf("rxe%d", nic), "type", "rxe", "netdev", dev)
	}
	for nic := range c.NICs {
		port := fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1", nic)
		line(`await 'case $(cat %s/state) in *ACTIVE*) ;; *) false ;; esac'`, port)
		line(`await 'case $(cat %s/gids/1 2>/dev/null) in *ffff:*) ;; *) false ;; esac'`, port)
	}
	line("mkdir -p %s /root /lab; mkfifo /run/stdout /run/stderr", outFolder)
	line("cat /run/stdout >/dev/vport0p%d 3>&- &", portStdout)
	line("cat /run/stderr >/dev/vport0p%d 3>&- &", portStderr)
	line("exec 4<>/run/stdout 5<>/run/stderr")
	line("ulimit -l unlimited")
	for _, kv := range c.environment(host) {
		line("export %s", quote(kv))
	}
	line("cd /lab")
	line("echo ready >&3")
	line("read -r word <&3")
	// A session of its own, for stop to reach all of it.
	line(`(read -r word <&3; kill -TERM "-$(cat /run/pid)") 4>&- 5>&- &`)
	line(`setsid /bin/sh -c 'echo $$ >/run/pid; exec "$@"' kvlab %s </dev/null >&4 2>&5 3>&- 4>&- 5>&-`, quoteAll(command))
	line("code=$?")
	line("printf %s >&4; printf %[1]s >&5", token)
	if c.Out != "" {
		line("tar -cf - -C %s . >/dev/vport0p%d", outFolder, portOut)
	}
	line(`echo "exit $code" >&3`)
	// The host stays on its networks until the lab is over; what is not read on
	// a port yet would be lost with it, too.
	line("while :; do sleep 1000; done")
	return b.String()
}
