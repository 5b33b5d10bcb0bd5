//go:build !linux

package ahead

import (
	"net"
	"time"
)

// roundTrip is not known.
func roundTrip(net.Conn) time.Duration { return 0 }
