//go:build !linux

package tcp

import (
	"errors"
	"syscall"

	"kvferry/transport"
	"kvferry/transport/socket"
)

// Only Linux says enough of a connection to tune it.

func look(syscall.RawConn) (info, error) { return info{}, errors.ErrUnsupported }

func gauge(socket.Conn) transport.Flow { return transport.Flow{} }

func (decision) apply(syscall.RawConn) error { return errors.ErrUnsupported }

func clampWindow(syscall.RawConn, int64) {}
