// Package observe records what else happened during a run: on the machine of the bench, and on the server.
//
// A [Machine] describes the CPUs, memory and network interfaces that the bench runs on. A [Watch] observes that machine
// from its start to its end. Its [Disturbance] is judged against thresholds that were found by disturbing a machine.
// Shares are in percent, latenesses in milliseconds.
//
// A [Scrape] reads the server's /metrics before and after a run and sets its account beside the client's.
package observe

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jaypipes/ghw"
)

// Machine is where the bench ran. What cannot be read is left empty.
type Machine struct {
	CPU         string   `json:"cpu"`
	Cores       int      `json:"cores"`   // physical
	Threads     int      `json:"threads"` // that this process may use
	MemoryBytes int64    `json:"memory_bytes"`
	NICs        []string `json:"nics"` // "eth0 10000Mb/s", virtual ones marked
	OS          string   `json:"os"`
	Kernel      string   `json:"kernel"`
	Go          string   `json:"go"`
}

// Describe never fails: a container may hide any of it, and a bench is
// not worth less for that.
func Describe() Machine {
	m := Machine{
		Threads: runtime.GOMAXPROCS(0),
		NICs:    []string{},
		OS:      runtime.GOOS + "/" + runtime.GOARCH,
		Go:      runtime.Version(),
	}
	quiet := []any{ghw.WithDisableTools(), ghw.WithDisableWarnings()}
	if cpu, err := ghw.CPU(quiet...); err == nil {
		m.Cores = int(cpu.TotalCores)
		if len(cpu.Processors) > 0 {
			m.CPU = strings.TrimSpace(cpu.Processors[0].Model)
		}
	}
	if memory, err := ghw.Memory(quiet...); err == nil {
		m.MemoryBytes = memory.TotalPhysicalBytes
	}
	if network, err := ghw.Network(quiet...); err == nil {
		for _, nic := range network.NICs {
			text := nic.Name
			if nic.Speed != "" {
				text += " " + nic.Speed
			}
			if nic.IsVirtual {
				text += " (virtual)"
			}
			m.NICs = append(m.NICs, text)
		}
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(release))
	}
	return m
}

// String is one line for a report's head.
func (m Machine) String() string {
	cpu := cmp.Or(m.CPU, "unknown CPU")
	return fmt.Sprintf("%s, %d threads, %.0f GiB, %s %s, %s", cpu, m.Threads,
		float64(m.MemoryBytes)/(1<<30), m.OS, m.Kernel, m.Go)
}
