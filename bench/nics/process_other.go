//go:build !linux

package nics

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from a process. There is no lab to run it in.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
