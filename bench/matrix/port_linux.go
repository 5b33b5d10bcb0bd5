package matrix

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// stat are the fields of /proc/PID/stat from the state on, with the program's name before them;
// nil of a process that has ended. The name stands in parentheses and may hold anything.
func stat(pid int) (program string, fields []string) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if err != nil || open < 0 || end < open {
		return "", nil
	}
	return string(text[open+1 : end]), strings.Fields(string(text[end+1:]))
}

// Fields of stat: proc(5) counts them from 1, and the state is its third.
const (
	statParent = 4 - 3
	statGroup  = 5 - 3
	statBegan  = 22 - 3
)

// beginning is when a process began, in clock ticks since the machine's start.
func beginning(pid int) (ticks uint64, ok bool) {
	_, fields := stat(pid)
	if len(fields) <= statBegan {
		return 0, false
	}
	ticks, err := strconv.ParseUint(fields[statBegan], 10, 64)
	return ticks, err == nil
}

// listeners are the processes that listen at an address, as far as this user may look into
// them.
func listeners(addr string) (all []listener) {
	sockets := listening(addr)
	if len(sockets) == 0 {
		return nil
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || !slices.Contains(sockets, target) {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		if slices.ContainsFunc(all, func(l listener) bool { return l.pid == pid }) {
			continue
		}
		program, fields := stat(pid)
		if len(fields) <= statBegan {
			continue
		}
		l := listener{pid: pid, program: program}
		l.began, _ = strconv.ParseUint(fields[statBegan], 10, 64)
		for len(fields) > statParent {
			parent, _ := strconv.Atoi(fields[statParent])
			if parent <= 1 || slices.Contains(l.parents, parent) {
				break
			}
			l.parents = append(l.parents, parent)
			_, fields = stat(parent)
		}
		all = append(all, l)
	}
	return all
}

// listening are the sockets that listen at an address, or at its port on all addresses, as the
// links in /proc/PID/fd name them.
func listening(addr string) (sockets []string) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil
	}
	host, _ := netip.AddrFromSlice(at.IP)
	host = host.Unmap()
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table) // IPv6 may not be there
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" {
				continue
			}
			local, port, _ := strings.Cut(f[1], ":")
			n, err := strconv.ParseUint(port, 16, 16)
			if ip := kernelAddr(local); err == nil && int(n) == at.Port && (!host.IsValid() || host.IsUnspecified() || ip.IsUnspecified() || ip == host) {
				sockets = append(sockets, "socket:["+f[9]+"]")
			}
		}
	}
	return sockets
}

// kernelAddr reads an address of /proc/net/tcp: words of four bytes in hex, each in the order of
// this machine, which is the lowest byte first.
func kernelAddr(text string) netip.Addr {
	b, err := hex.DecodeString(text)
	if err != nil {
		return netip.Addr{}
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	ip, _ := netip.AddrFromSlice(b)
	return ip.Unmap()
}
