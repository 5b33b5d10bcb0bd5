package config

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports that no system gives of its own accord: Linux gives those from 32768 on, others those from 49152
// on (net.ipv4.ip_local_port_range, RFC 6335).
const (
	firstPort = 20000
	endPort   = 32768
)

// FreePort is a port of a host that nobody listens at, for a process that is started next. It is not one of those
// that the system gives to whoever asks for any port, or connects: between now and when that process listens there,
// somebody else would be given it.
func FreePort(host string) (port int, err error) {
	for range 100 {
		port = firstPort + rand.IntN(endPort-firstPort)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port at %s: %w", host, err)
}
