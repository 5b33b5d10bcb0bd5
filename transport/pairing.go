package transport

// A Reach says how a local rail would reach a peer's address.
type Reach uint8

const (
	// Unknown: the rail cannot tell.
	Unknown Reach = iota
	// OnLink: the address is on a network of the rail's own NIC.
	OnLink
	// Routed: packets leave by the rail's own NIC, to a gateway.
	Routed
	// Elsewhere: packets would leave by another interface, whatever address they
	// come from.
	Elsewhere
	// NoRoute: the address cannot be reached from here.
	NoRoute
	// Beside: the address is a process of this machine, from whose memory or to whose the bytes
	// go without a NIC.
	Beside
	// OneSided: likewise, and this process copies by itself.
	OneSided
)

func (r Reach) String() string {
	return [...]string{"unknown", "on link", "routed", "by another interface", "no route", "beside", "one-sided"}[r]
}

// A Router is a rail that can tell how packets to a peer's address would leave: the
// engine pairs its rails with a peer's by that. A rail that is none is taken to reach
// every address of its kind.
type Router interface {
	// Route asks the system, and connects to nobody. why is for a person: "packets to
	// 10.77.0.2 leave by eth0, not eth1"; it is empty where there is nothing to say. It
	// may be called from any goroutine, and after Close, when it may answer Unknown.
	Route(addr string) (r Reach, why string)
}

// order is how good a reach is, for selection.Pair; what leaves by another interface is not one.
var order = [...]int{OneSided: 0, Beside: 0, OnLink: 0, Routed: 1, Unknown: 1, Elsewhere: -1, NoRoute: -1}
