package cluster

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of CPU times in /proc: USER_HZ, 100 on every Linux
// architecture that Go supports.
const clockTick = 10 * time.Millisecond

// Usage is what the process has used so far. It fails once the process has ended: /proc has
// it no longer.
func (p *Process) Usage() (Usage, error) {
	u, err := usage(p.Pid())
	if err != nil {
		return Usage{}, fmt.Errorf("cluster: %s: %w", p.Name, err)
	}
	return u, nil
}

func usage(pid int) (u Usage, err error) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return u, err
	}
	// The second field, the command in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, f := range fields[11:13] { // utime and stime are fields 14 and 15, proc(5)
		ticks, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc stat: %w", err)
		}
		u.CPU += time.Duration(ticks) * clockTick
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return u, err
	}
	// proc_pid_status(5): VmHWM is the peak of resident memory, file pages included, and
	// RssFile those of now. There is no peak of each kind.
	peak, err := kilobytes(status, "VmHWM:")
	if err != nil {
		return u, err
	}
	u.Program, err = kilobytes(status, "RssFile:")
	u.Own = peak - u.Program
	return u, err
}

// kilobytes is a field of /proc's status, in bytes. Its "kB" are 1024.
func kilobytes(status []byte, field string) (int64, error) {
	_, rest, _ := bytes.Cut(status, []byte(field))
	f := bytes.Fields(rest)
	if len(f) == 0 {
		return 0, fmt.Errorf("/proc status has no %s", field)
	}
	kb, err := strconv.ParseInt(string(f[0]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc status: %s %w", field, err)
	}
	return kb << 10, nil
}
