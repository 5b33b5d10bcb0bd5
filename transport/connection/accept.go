package connection

import (
	"errors"
	"net"
	"time"
)

// acceptAgain is how long Accept rests where a connection could not be accepted: the reason is most often that
// the process has no files left, and those being closed let it go on.
const acceptAgain = 100 * time.Millisecond

// Accept serves each connection that comes, until the listener is closed. serve is called in the
// order that they come, and admits them.
func (a *Admission) Accept(ln net.Listener, serve func(net.Conn)) {
	for {
		c, err := ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			a.Failed(err)
			time.Sleep(acceptAgain)
		default:
			serve(c)
		}
	}
}
