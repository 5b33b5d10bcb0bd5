package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// This file reads /proc, which only Linux has.

// ClockTick is the unit of CPU times in /proc: USER_HZ, 100 on every Linux architecture
// that Go supports.
const ClockTick = 10 * time.Millisecond

// Usage is what a process has used so far.
type Usage struct {
	CPU time.Duration // user and system

	// Own and Program are the memory that the process had resident at its peak, in bytes:
	// its own, and the pages of its program's file, which all processes of the program
	// share. Of the latter only the present number is known, and is taken for that at the
	// peak: the kernel drops and maps them as it likes.
	Own, Program int64
}

// Usage returns what the child has used so far. It fails once the child has ended.
func (p *Proc) Usage() (Usage, error) { return usage(p.Pid()) }

func usage(pid int) (u Usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if u.CPU, err = CPUTime(dir); err != nil {
		return u, err
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	// proc_pid_status(5): VmHWM is the peak of resident memory, file pages included, and
	// RssFile those of now. There is no peak of each kind.
	peak, err := number(status, "VmHWM:")
	if err != nil {
		return u, err
	}
	program, err := number(status, "RssFile:")
	u.Own, u.Program = (peak-program)<<10, program<<10 // "kB" are 1024
	return u, err
}

// CPUTime returns the user and system time that a process has used so far, from its folder
// in /proc.
func CPUTime(dir string) (cpu time.Duration, err error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field, the command in parentheses, may hold anything.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0, fmt.Errorf("%s/stat has %d fields after the command, want 13 or more", dir, len(f))
	}
	for _, text := range f[11:13] { // utime and stime, fields 14 and 15, proc_pid_stat(5)
		ticks, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s/stat: %w", dir, err)
		}
		cpu += time.Duration(ticks) * ClockTick
	}
	return cpu, nil
}

// populated reports whether a process of a group runs. One that has ended and that nobody has
// waited for does not.
func populated(group int) bool {
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, name := range all {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended since
		}
		// State, parent and group are behind the command, proc_pid_stat(5).
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) > 2 && f[0] != "Z" && f[2] == strconv.Itoa(group) {
			return true
		}
	}
	return false
}

// number returns the number behind the first name in a file of /proc.
func number(text []byte, name string) (n int64, err error) {
	_, rest, _ := bytes.Cut(text, []byte(name))
	if _, err := fmt.Fscan(bytes.NewReader(rest), &n); err != nil {
		return 0, fmt.Errorf("/proc has no number behind %s: %w", name, err)
	}
	return n, nil
}

// oomKills returns how many processes the kernel has ended for want of memory since the
// machine started, and 0 where it does not say.
func oomKills() int64 {
	text, _ := os.ReadFile("/proc/vmstat")
	n, _ := number(text, "\noom_kill ")
	return n
}

// killed returns why a child was killed if the kernel has meanwhile ended n processes for
// want of memory.
func killed(n int64) error {
	if n > 0 {
		return fmt.Errorf("%w: the kernel has ended %d for that meanwhile", ErrKilled, n)
	}
	return ErrKilled
}

// listens reports whether a socket listens on a TCP port in the network namespace of a
// process. To connect would be to be the client that a server for one client waits for.
func listens(pid, port int) bool {
	for _, name := range []string{"tcp", "tcp6"} {
		table, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if inTable(string(table), port) {
			return true
		}
	}
	return false
}

// inTable reads the kernel's table of TCP sockets, proc_net_tcp.txt: the second column is the
// local address and port in hexadecimal digits, and the fourth is the state, where 0A is LISTEN.
func inTable(table string, port int) bool {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}
