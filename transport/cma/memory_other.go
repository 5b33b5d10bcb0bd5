//go:build !linux

package cma

import (
	"kvferry/transport/process"
	"kvferry/transport/socket"
)

func attach(socket.Conn) (socket.Memory, error) { return nil, process.ErrUnsupported }
