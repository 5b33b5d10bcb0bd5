//go:build !linux

package cluster

import "errors"

// Usage is known on Linux only.
func (p *Process) Usage() (Usage, error) {
	return Usage{}, errors.New("cluster: a process's CPU time and memory are read from /proc, which only Linux has")
}
