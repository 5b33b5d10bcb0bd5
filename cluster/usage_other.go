//go:build !linux

package cluster

import (
	"errors"
	"time"
)

// Usage is known on Linux only.
func (p *Process) Usage() (cpu time.Duration, peakRSS int64, err error) {
	return 0, 0, errors.New("cluster: a process's CPU time and memory are read from /proc, which only Linux has")
}
