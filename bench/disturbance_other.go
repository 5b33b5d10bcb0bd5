//go:build !linux

package bench

import (
	"errors"
	"time"
)

// usage is known on Linux only.
type usage struct {
	cpus                     int
	idle, steal, own, waited time.Duration
	waitedKnown              bool
}

func readUsage([]int) (usage, error) {
	return usage{}, errors.New("it is read from /proc, which only Linux has")
}
