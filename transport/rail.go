package transport

import "context"

// A Key names a registered region on one rail. Keys are unguessable: knowing one is
// the permission to do what it was registered for. Zero is never valid.
type Key uint64

// An Op is a direction of transfer, seen from the initiator.
type Op uint8

const (
	Write Op = iota // local memory to the target
	Read            // target to local memory
)

func (o Op) String() string {
	switch o {
	case Write:
		return "write"
	case Read:
		return "read"
	}
	return "invalid op"
}

// A Rail moves slices over one NIC. Its methods may be called concurrently.
// transporttest.TestRail states this contract as a test.
type Rail interface {
	// Name identifies the rail in metrics, errors and reports: "tcp/eth1".
	// The part before the slash is the rail's kind: only rails of one kind
	// reach each other. It may be called after Close.
	Name() string

	// Addr is what a peer's rail dials. It travels in the segment's
	// metadata. It may be called after Close.
	Addr() string

	// Register gives mem a key. Peers that present it may do what access says,
	// with offsets from the start of mem; whatever else they try, the target
	// refuses the slice as access.Check does and touches nothing. (Rails of RDMA
	// cannot check at the target, see package rdma.) With an access that opens
	// nothing the key is for Slice.LocalKey, and to peers it is a bad one. mem
	// must stay mapped until Deregister or Close returns, and have all that
	// access opens, or it is ErrInvalid. After Close it returns net.ErrClosed.
	Register(mem []byte, access Access) (Key, error)

	// Deregister makes the key invalid and returns when no peer's operation
	// touches the region any more. An operation that has stalled is cut off
	// rather than waited for. The rail's own posted slices are the caller's
	// business. An unknown key is ErrBadKey; after Close it returns
	// net.ErrClosed.
	Deregister(Key) error

	// Dial returns an endpoint connected to a peer's rail, or an error
	// within the time ctx allows. After Close it returns net.ErrClosed.
	Dial(ctx context.Context, addr string) (Endpoint, error)

	// HandleImmediates sets the function that gets the immediates peers
	// send, with the key of the slice that each came with. It is called once,
	// before the first Register, and runs on the rail's own goroutines; a slice
	// with an immediate completes at its initiator after the function returned.
	HandleImmediates(func(Key, Imm))

	// Fence ends the connection that a peer's endpoint with this secret made,
	// if there is one, and returns when it touches nothing any more. It may run
	// within the function that gets immediates.
	Fence(Secret)

	// Close stops serving peers and closes every endpoint, so that every
	// posted slice has completed and no registered memory is touched when
	// it returns. A second Close, beside the first or later, waits likewise
	// and returns nil. What is said above of the time after Close holds from
	// when it has returned; while it runs calls may end either way.
	Close() error
}

// An Endpoint is one connected pair of rails: a socket, a queue pair.
type Endpoint interface {
	// Secret ends the connection at the peer's rail, by its Fence. What travels
	// over the connection does not tell it.
	Secret() Secret

	// Post queues a prefix of slices, in order, and never blocks. n <
	// len(slices) means that the queue is full: there is room again when a
	// posted slice has completed. The queue is bounded, as a lost connection has
	// to send again what it held: see Room in package connection, which counts it. Every queued slice is completed exactly
	// once, never from within Post, and may post more as it does; until then
	// the rail may touch its Local memory, afterwards not. err is non-nil only
	// if the endpoint is unusable, in which case it stays so; after Close it is
	// net.ErrClosed.
	//
	// A slice that completes with an error that is not Refused means that the
	// endpoint is broken: the rail completes its remaining slices with errors
	// too.
	Post(slices []*Slice) (n int, err error)

	// Close completes the slices still posted with net.ErrClosed, and then
	// returns. It takes no longer than the NIC needs to let go of the
	// memory; it does not wait for the peer. A second Close waits likewise
	// and returns nil.
	Close() error
}
