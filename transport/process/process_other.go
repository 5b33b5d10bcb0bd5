//go:build !linux

package process

import "syscall"

// Supported returns nil if the kernel has cross-memory attach: only Linux does.
func Supported() error { return ErrUnsupported }

// Permit does nothing here.
func Permit() {}

// Credentials are those of a process.
type Credentials struct{ PID, UID int }

// Of is not known here.
func Of(syscall.Conn) (Credentials, error) { return Credentials{}, ErrUnsupported }

// Name is not known here.
func Name(syscall.Conn) string { return "unknown" }

// ShortTurns does nothing here.
func ShortTurns() {}

// Machine is not known here.
func Machine() string { return "" }
