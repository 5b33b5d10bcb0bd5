package rdma

import (
	"fmt"
	"net/netip"
	"time"
)

// What the rail needs of libibverbs. verbs_linux.go is the real thing; the tests'
// is in memory, so that all above this line runs, with faults, where there is no
// device and no C compiler.
//
// Of one connection's pairs, posting comes from any goroutine, one at a time; receive, poll,
// arm, sleep, fail and close are the poller's; interrupt may be called by anybody until close.

// A device is one opened port, with its protection domain.
type device interface {
	info() deviceInfo
	// register pins mem and lets the port read and write it.
	register(mem []byte) (memory, error)
	// registerDMABuf does so with a part of a dma-buf: GPU memory. mem is what requests say of it; nothing
	// is there. It begins at the same place of a page as the part does in the dma-buf.
	registerDMABuf(mem []byte, fd int, offset int64) (memory, error)
	// pairs makes n queue pairs that share a completion queue. Each takes depth
	// operations and depth receives, and has its receives posted.
	pairs(n, depth int) (pairs, error)
	// event waits for an asynchronous event; net.ErrClosed after close.
	event() (event, error)
	// close comes after all memory and pairs of the device are closed.
	close() error
}

type deviceInfo struct {
	port       port
	gid        gid
	netdev     string
	maxMessage int // bytes one operation moves at most
	maxDepth   int // operations a queue pair holds at most
	maxInline  int // bytes that go with the request, granted to pairs
}

// memory is a registered region.
type memory interface {
	keys() (lkey, rkey uint32)
	addr() uint64 // of its first byte, in requests
	close() error
}

// pairs are the queue pairs of one connection.
type pairs interface {
	addrs() []pairAddr
	// start connects them to the peer's, one to one.
	start(peer []pairAddr, at portAddr) error
	// post hands requests to their queue pairs, in order, in one call.
	post([]workRequest) error
	// receive posts n receives to a queue pair.
	receive(pair, n int) error
	// poll takes completions, for which it spins as long as that.
	poll(out []completion, spin time.Duration) (int, error)
	// arm has the device wake sleep at the next completion, and takes those that
	// are there by then.
	arm(out []completion) (int, error)
	// sleep returns when there are completions, or after interrupt. Without an arm before
	// it, completions do not wake it.
	sleep() error
	// interrupt ends the sleep under way, or the next.
	interrupt()
	// fail puts the queue pairs in the error state: what is posted is flushed.
	fail() error
	// close destroys the queue pairs: nothing touches memory any more.
	close() error
}

// pairAddr is where a peer's queue pair is reached at its port. Both numbers have 24 bits; psn is
// that of its first packet.
type pairAddr struct{ number, psn uint32 }

// portAddr is where a port is reached.
type portAddr struct {
	gid [16]byte
	lid uint16 // 0 on Ethernet
	mtu uint8  // ibv_mtu: 1 is 256 bytes, 5 is 4096
}

// An opcode is KV_WRITE and so on of verbs.h, in its order.
type opcode uint8

const (
	opWrite opcode = iota
	opWriteImm
	opRead
)

const (
	flagSignaled = 1 << iota // KV_SIGNALED: it has a completion of its own, if it goes well
	flagInline               // KV_INLINE: its bytes are taken as it is posted
)

// A workRequest is laid out as struct kv_wr of verbs.h.
type workRequest struct {
	id            uint64
	local, remote uint64 // addresses
	length        uint32 // bytes; 0 touches no memory
	lkey, rkey    uint32
	imm           uint32 // of opWriteImm, in this machine's byte order
	pair          uint16
	op            opcode
	flags         uint8
	_             uint32
}

// A completion is laid out as struct kv_wc of verbs.h.
type completion struct {
	id     uint64 // of a receive: receiveID and the pair
	status status // unless it is statusOK, of the others only id and vendor count
	vendor uint32
	imm    uint32
	_      uint32
}

// An id says whose completion it is: the pair, and its request's number.
const (
	receiveID = 1 << 63
	pairShift = 48
	seqMask   = 1<<pairShift - 1
)

func requestID(pair int, seq uint64) uint64 { return uint64(pair)<<pairShift | seq&seqMask }

// An event is something that happened to the device.
type event uint8

const (
	portDown event = iota
	portUp
	deviceGone
)

// A port is one of a device, as ibv_query_port has it.
type port struct {
	num    int // from 1
	active bool
	state  string // "ACTIVE", "DOWN"
	lid    uint16
	mtu    uint8 // ibv_mtu, see portAddr
	infini bool  // InfiniBand; else Ethernet
	gids   []gid
}

// A gid is an address of a port: over RoCE an IP address of its network interface.
type gid struct {
	index  int // in the port's table
	addr   [16]byte
	kind   gidKind
	netdev string
}

// A gidKind says how packets from the address look: enum ibv_gid_type.
type gidKind uint8

const (
	gidIB gidKind = iota
	gidRoCE1
	gidRoCE2
)

func (k gidKind) String() string { return [...]string{"IB", "RoCE v1", "RoCE v2"}[k] }

func (g gid) ip() netip.Addr { return netip.AddrFrom16(g.addr).Unmap() }

func (g gid) String() string { return fmt.Sprintf("%d (%s %s)", g.index, g.kind, g.ip()) }
