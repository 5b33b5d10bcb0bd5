//go:build !linux

package cma

import "kvferry/transport/socket"

// supported returns nil if the kernel has cross-memory attach: only Linux does.
func supported() error { return ErrUnsupported }

func permit() {}

func attach(socket.Conn) (socket.Memory, error) { return nil, ErrUnsupported }

func peerOf(socket.Conn) string { return "unknown" }
