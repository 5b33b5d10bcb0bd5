package cluster

import "time"

// Usage is what a process has used.
type Usage struct {
	CPU time.Duration // user and system

	// The memory it had resident at its peak, in bytes: its own, and the pages of its
	// program's file, which all processes of the program share. The kernel drops
	// and maps the latter as it likes; only how many there are now is known, and they
	// are taken to have been as many at the peak.
	Own, Program int64
}
