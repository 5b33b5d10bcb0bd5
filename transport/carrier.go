package transport

import "context"

// A Carrier is an endpoint that copies by itself, in this process, and so needs nobody to wake where there is
// little to do. The engine uses these two methods of it instead of Post.
type Carrier interface {
	// Queue is Post, except that nothing has to be done about the slices before Carry is called. Who
	// calls it calls Carry soon.
	Queue(slices []*Slice) (n int, err error)

	// Carry moves what was queued, on the caller's goroutine, and completes it: so the caller holds
	// no lock that a completion needs. What takes longer than some 10 us, or needs the peer, it leaves to the
	// endpoint's own goroutine. It may be called within a completion, and does nothing where
	// somebody is at it already, who will see what was queued.
	Carry()
}

// A Bundle is an endpoint of several connections, which are lost together. Secret is that of the first.
type Bundle interface {
	// Secrets are those of all that may carry anything: a lost connection has been ended once each has.
	Secrets() []Secret
}

// A Wide is a rail whose Dial makes a Bundle. DialOne makes an endpoint of one connection, for an express.
type Wide interface {
	DialOne(ctx context.Context, addr string) (Endpoint, error)
}

// SecretsOf are those of all connections of an endpoint.
func SecretsOf(ep Endpoint) []Secret {
	if b, ok := ep.(Bundle); ok {
		return b.Secrets()
	}
	return []Secret{ep.Secret()}
}

// A connection is one endpoint of a path.
type connection struct {
	ep      Endpoint
	carrier Carrier // ep, if it is one
	gauge   Gauge   // likewise
}

// post is the endpoint's Post, or Queue.
func (c *connection) post(chunk []*Slice) (int, error) {
	if c.carrier != nil {
		return c.carrier.Queue(chunk)
	}
	return c.ep.Post(chunk)
}

// carry has a Carrier move what was queued. The caller holds no lock.
func (c *connection) carry() {
	if c != nil && c.carrier != nil {
		c.carrier.Carry()
	}
}
