//go:build !linux

package tcp

import "syscall"

// control leaves the system's defaults: only Linux lets a socket choose its
// congestion control.
func (cfg *Config) control(_, _ string, _ syscall.RawConn) error { return nil }
