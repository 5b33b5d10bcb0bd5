//go:build !linux

package matrix

import "syscall"

// adopt does nothing: only Linux has child subreapers. What leaves the group of its command is
// not found here.
func adopt() {}

// attributes of a command: a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// strays cannot be told from other processes.
func strays(int) []int { return nil }
