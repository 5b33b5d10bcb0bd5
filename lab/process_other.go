//go:build !linux

package lab

import (
	"errors"
	"net"
	"os"
	"os/exec"
)

var errLinux = errors.New("a lab needs Linux: its packages and its kernel are Debian's")

// StartTied starts nothing: a lab needs Linux.
func StartTied(*exec.Cmd) (<-chan error, error) { return nil, errLinux }

func newMemoryFile() (*os.File, error)     { return nil, errLinux }
func cable() (a, b *os.File, err error)    { return nil, nil, errLinux }
func channel() (net.Conn, *os.File, error) { return nil, nil, errLinux }
