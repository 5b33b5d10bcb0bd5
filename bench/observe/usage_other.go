//go:build !linux

package observe

import (
	"errors"
	"time"
)

// Usage is known on Linux only.
type Usage struct {
	cpus                     int
	idle, steal, own, waited time.Duration
	waitedKnown              bool
}

func ReadUsage([]int) (Usage, error) {
	return Usage{}, errors.New("it is read from /proc, which only Linux has")
}
