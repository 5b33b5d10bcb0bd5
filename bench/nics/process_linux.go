package nics

import "syscall"

// ownGroup keeps a terminal's Ctrl-C from a process, and ends it with this one.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
