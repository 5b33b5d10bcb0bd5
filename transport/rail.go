package transport

import (
	"context"
	"time"
)

// A Key names a registered region on one rail. Keys are unguessable: knowing one is
// the permission to do what it was registered for. Zero is never valid.
type Key uint64

// A Rail moves slices over one NIC. The engine is its user: it calls HandleImmediates
// first, then everything else from any goroutine, several at once. Close may be called at
// any time, beside all others; what a method does after Close is said of each, and holds
// from when Close has returned. While Close runs, calls may end either way.
//
// Errors are those of this package, wrapped with whose connection it was and why:
// errors.Is tells them apart. transporttest.TestRail states this contract as a test.
type Rail interface {
	// Name identifies the rail in metrics, errors and reports: "tcp/eth1".
	// The part before the slash is the rail's kind: only rails of one kind
	// reach each other. It does not change, and may be called after Close.
	Name() string

	// Addr is what a peer's rail dials. It travels in the segment's
	// metadata. It does not change, and may be called after Close.
	Addr() string

	// Register gives mem a key, a new one each time. Peers that present it may do
	// what access says, with offsets from the start of mem; whatever else they try,
	// the target refuses the slice as access.Check does and touches nothing. (Rails
	// of RDMA cannot check at the target, see package rdma.) With an access that
	// opens nothing the key is for Slice.LocalKey, and to peers it is a bad one. With no mem and an access
	// that is Bare it is for immediates alone; a DMABufRail is not asked for that.
	//
	// mem is lent to the rail: it must stay mapped until Deregister or Close
	// returns. Memory that does not have all that access opens is ErrInvalid. After
	// Close it returns net.ErrClosed.
	Register(mem []byte, access Access) (Key, error)

	// Deregister makes the key invalid and returns when no peer's operation
	// touches the region any more, and no immediate comes with the key: the memory
	// is the caller's again. An operation that has stalled is cut off rather than
	// waited for. The rail's own posted slices are the caller's business. An
	// unknown key is ErrBadKey; after Close it returns net.ErrClosed. It must not
	// be called by the function that gets immediates, which it may wait for.
	Deregister(Key) error

	// Dial returns an endpoint connected to a peer's rail, or an error within the
	// time ctx allows: ErrUnreachable if nobody answers, ErrProtocol if who answers
	// is no rail, ctx's own. By then the peer has ended the connections from here
	// that were lost with writes unanswered, so that nothing of them lands after
	// what is posted now. The endpoint is the caller's to close; the rail's Close
	// does too. After Close it returns net.ErrClosed.
	Dial(ctx context.Context, addr string) (Endpoint, error)

	// HandleImmediates sets the function that gets the immediates peers send, with
	// the key of the slice that each came with. It is called once, before the
	// first Register and so before Close.
	//
	// The function runs on the rail's own goroutines: for one connection one after
	// the other, those of one key in the order that they were posted, for several
	// connections at once. The bytes of its slice, and of those posted before it with
	// its key on that connection, are in place by then, and the slice completes at
	// its initiator after the function returned. The connection waits meanwhile, so it should not
	// block for long. It may call Fence, of another connection; it must not call
	// Deregister or Close. It is not running when Close has returned, and is not
	// called any more.
	//
	// An error that is Refused refuses the slice, if it has no bytes: its initiator hears of
	// it, as it does of a bad key.
	HandleImmediates(func(Key, Imm) error)

	// Fence ends the connection that a peer's endpoint with this secret made,
	// if there is one, and returns when it touches nothing any more. Slices that
	// were posted on it end at their initiator with ErrUnreachable. A secret that
	// is nobody's, or no more, does nothing, and so does every one after Close. It
	// may run within the function that gets immediates.
	Fence(Secret)

	// Close stops serving peers and closes every endpoint, so that every
	// posted slice has completed and no registered memory is touched when
	// it returns. Keys need not be deregistered before. A second Close, beside the
	// first or later, waits likewise and returns nil.
	Close() error
}

// A Congested is a rail whose connections have congestion control, which the rail chooses.
type Congested interface {
	// Congestion counts the connections that are open by their algorithm, and how often one
	// was given another.
	Congestion() (conns map[string]int, changes int64)
}

// A WriteWatcher is a rail whose target copies what peers write, and can tell the owner of the memory.
type WriteWatcher interface {
	// WatchesWrites reports whether the rail calls the functions of Access.Watched.
	WatchesWrites() bool
}

// A Gauge is an endpoint that knows more of its path than completions show: a slice of a
// megabyte takes a second on a slow path, which is not silent then, and several round trips on
// one that has just begun. One whose first Flow is zero knows nothing, and is none.
type Gauge interface {
	Gauge() Flow
	// Poke has the peer show that it can be reached, by what its kernel or NIC answers by
	// itself: Flow.Moved grows then. It does not block.
	Poke()
}

// A Flow is what the protocol of a connection knows of it; 0 is what it does not know.
type Flow struct {
	Moved     uint64        // bytes that have come through so far, in both directions
	RoundTrip time.Duration // what one takes now
	// Window is how many bytes congestion control lets be under way, while that still doubles
	// with each round trip; -1 once it does not.
	Window int64
	// Asked says that the peer's kernel or NIC owes an answer, to more than it might want to
	// wait with; Unheard is how long ago the last one came.
	Asked   bool
	Unheard time.Duration
	Jitter  time.Duration // how much longer than RoundTrip an answer may take
	Resent  uint64        // packets that were lost on the way so far, and sent again
}

// An Endpoint is one connected pair of rails: a socket, a queue pair. Its methods may be
// called from any goroutine, several at once.
type Endpoint interface {
	// Secret ends the connection at the peer's rail, by its Fence. What travels
	// over the connection does not tell it. It does not change, and may be called
	// after Close: that is when it is needed.
	Secret() Secret

	// Post queues a prefix of slices, in order, and never blocks. n <
	// len(slices) means that the queue is full: there is room again when a
	// posted slice has completed. The queue is bounded, as a lost connection has
	// to send again what it held: see Room in package connection, which counts it.
	// An endpoint that has nothing posted takes at least one slice, of any size.
	//
	// The first n slices and their Local memory are the rail's until they
	// complete: it calls Slice.Complete or CompleteAll exactly once for each, never
	// from within Post (see Carrier for what may), on a goroutine of its own, which holds no lock that Post
	// needs: what hears of a completion may post more. The list itself is the
	// caller's again when Post returns.
	//
	// err is non-nil only if the endpoint is unusable, in which case it stays so,
	// and n is 0; after its Close, or the rail's, it is net.ErrClosed, or why it was
	// unusable before.
	//
	// A slice completes with nil when its bytes are applied at the destination;
	// with an error that is Refused, alone; with ErrInvalid if this rail cannot
	// carry it as it is set; with any other if the endpoint is broken: the rail
	// completes its remaining slices with errors too. Only the target's Fence says
	// then whether bytes of a WRITE may yet land.
	Post(slices []*Slice) (n int, err error)

	// Close completes the slices still posted with net.ErrClosed, and then
	// returns: their memory is the caller's. It takes no longer than the NIC needs
	// to let go of the memory; it does not wait for the peer. It must not be called
	// by what hears of a completion, which it may wait for. A second Close waits
	// likewise and returns nil.
	Close() error
}
