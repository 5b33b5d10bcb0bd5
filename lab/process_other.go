//go:build !linux

package lab

import (
	"errors"
	"net"
	"os"
)

var errLinux = errors.New("a lab needs Linux: its packages and its kernel are Debian's")

func newMemoryFile() (*os.File, error)     { return nil, errLinux }
func cable() (a, b *os.File, err error)    { return nil, nil, errLinux }
func channel() (net.Conn, *os.File, error) { return nil, nil, errLinux }
