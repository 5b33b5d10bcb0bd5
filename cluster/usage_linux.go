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

// Usage returns the CPU time, user and system, that the process has used, and
// the most memory it has had resident, in bytes.
func (p *Process) Usage() (cpu time.Duration, peakRSS int64, err error) {
	dir := fmt.Sprintf("/proc/%d/", p.Pid())
	stat, err := os.ReadFile(dir + "stat")
	if err != nil {
		return 0, 0, fmt.Errorf("cluster: %s: %w", p.Name, err)
	}
	// The second field, the command in parentheses, may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, f := range fields[11:13] { // utime and stime are fields 14 and 15, proc(5)
		ticks, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("cluster: %s: /proc stat: %w", p.Name, err)
		}
		cpu += time.Duration(ticks) * clockTick
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return 0, 0, fmt.Errorf("cluster: %s: %w", p.Name, err)
	}
	_, rest, _ := bytes.Cut(status, []byte("VmHWM:"))
	if f := bytes.Fields(rest); len(f) > 0 {
		kb, err := strconv.ParseInt(string(f[0]), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("cluster: %s: VmHWM: %w", p.Name, err)
		}
		peakRSS = kb << 10
	}
	return cpu, peakRSS, nil
}
