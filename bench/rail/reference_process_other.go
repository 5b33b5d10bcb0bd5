//go:build !linux

package rail

import "syscall"

// attributes keep a Ctrl-C at the terminal from a program: it is its parent's to handle. Only
// Linux ends it with a parent that was killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
