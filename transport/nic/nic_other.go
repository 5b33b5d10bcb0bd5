//go:build !linux

package nic

import (
	"net"

	"kvferry/transport"
)

// Reach cannot tell: only Linux is asked.
func Reach(name string, local net.IP, addr string) (transport.Reach, string) {
	return transport.Unknown, ""
}

// Watch sees no changes: only Linux is asked.
func Watch(name string, changed func(up bool)) (up bool, stop func(), err error) {
	return true, func() {}, nil
}
