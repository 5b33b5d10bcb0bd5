package observe

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/internal/proc"
)

// Usage is what the CPUs that we may use have done so far, and our processes on them.
type Usage struct {
	cpus        int
	idle, steal time.Duration // of all those CPUs
	own         time.Duration // CPU time of our processes
	waited      time.Duration // of our threads, ready to run
	waitedKnown bool          // the kernel keeps it (CONFIG_SCHED_INFO, and delays are accounted)
}

// ReadUsage reads /proc. pids are our processes besides this one.
func ReadUsage(pids []int) (u Usage, err error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return u, fmt.Errorf("sched_getaffinity: %w", err)
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, err
	}
	if err := u.cpuTimes(stat, allowed.IsSet); err != nil {
		return u, err
	}
	u.waitedKnown = true
	for _, pid := range append(pids, os.Getpid()) {
		if err := u.process(filepath.Join("/proc", strconv.Itoa(pid))); err != nil {
			return u, err
		}
	}
	return u, nil
}

// cpuTimes reads /proc/stat. With the tickless kernels of today idle time is exact;
// busy time is sampled, and short work that timers begin is mostly missed.
func (u *Usage) cpuTimes(stat []byte, allowed func(cpu int) bool) error {
	for line := range strings.Lines(string(stat)) {
		f := strings.Fields(line)
		if len(f) < 9 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		n, err := strconv.Atoi(f[0][3:])
		if err != nil || !allowed(n) {
			continue
		}
		u.cpus++
		// user nice system idle iowait irq softirq steal, proc_stat(5).
		for k, field := range map[int]*time.Duration{4: &u.idle, 5: &u.idle, 8: &u.steal} {
			ticks, err := strconv.ParseInt(f[k], 10, 64)
			if err != nil {
				return fmt.Errorf("/proc/stat: %s: %w", f[0], err)
			}
			*field += time.Duration(ticks) * proc.ClockTick
		}
	}
	if u.cpus == 0 {
		return fmt.Errorf("/proc/stat has none of the CPUs that this process may use")
	}
	return nil
}

// process adds what a process and its threads have used, from its folder in /proc.
func (u *Usage) process(dir string) error {
	cpu, err := proc.CPUTime(dir)
	if err != nil {
		return err
	}
	u.own += cpu
	threads, err := filepath.Glob(filepath.Join(dir, "task", "*", "schedstat"))
	if err != nil {
		return err
	}
	counted := false
	for _, name := range threads {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		// Time on a CPU, time waited for one, turns; ns.
		f := bytes.Fields(text)
		if len(f) < 2 {
			return fmt.Errorf("%s: %q", name, text)
		}
		counted = counted || string(f[0]) != "0" // a kernel that keeps none says 0 0 0
		ns, err := strconv.ParseInt(string(f[1]), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		u.waited += time.Duration(ns)
	}
	u.waitedKnown = u.waitedKnown && counted
	return nil
}
