package wire

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batch is how many events a poller serves before others may run.
	batch = 64
	// A poller is busy when it had 16 events in the last millisecond. Then it does not wait to
	// be woken for the next one but naps, for 25 us and the kernel's 50 us of slack, and reads
	// what has come meanwhile. To be woken for each of 50,000 tokens a second costs sender and
	// reader together more than all the rest: an interrupt of the other CPU for every token, and
	// a reader that finds the socket still locked by the sender.
	busyEvents = 16
	busyPeriod = time.Millisecond
	nap        = 100 * time.Microsecond
	// readSize is what one read takes at most. A piece of a stream is 0.3 KB; what has piled
	// up in a client that was late, and answers that do not stream, may be more.
	readSize = 64 << 10
)

// A poller reads what arrives on its connections, in one goroutine.
type poller struct {
	transport *Transport
	epoll     *os.File // watched by Go's network poller
	fd        int
	done      chan struct{}
	closing   atomic.Bool

	mu    sync.Mutex
	conns map[int32]*conn // by descriptor

	// The goroutine's own.
	since   time.Duration // when the period began
	served  int           // events in it
	busy    bool          // so many in the one before
	events  [batch]unix.EpollEvent
	ready   [batch]*conn
	more    []*conn // those that had more to read than they may in a row
	buffer  []byte
	control [64]byte // ancillary data of a read
}

func newPoller(t *Transport) (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	// The runtime watches descriptors that do not block only.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("epoll descriptor: %w", err)
	}
	p := &poller{transport: t, fd: fd, epoll: os.NewFile(uintptr(fd), "epoll"), done: make(chan struct{}), conns: map[int32]*conn{}, buffer: make([]byte, readSize)}
	raw, err := p.epoll.SyscallConn()
	if err != nil {
		p.epoll.Close()
		return nil, err
	}
	go func() {
		defer close(p.done)
		// The runtime calls poll, and again whenever the epoll descriptor is readable, until
		// it returns true. The error is that of the descriptor's close.
		_ = raw.Read(func(uintptr) bool { return p.poll() })
	}()
	return p, nil
}

// close ends the goroutine, and then the connections.
func (p *poller) close() {
	p.mu.Lock()
	p.closing.Store(true) // from here on nobody adds to the descriptor
	p.mu.Unlock()
	p.epoll.Close()
	<-p.done
	p.mu.Lock()
	var all []*conn
	for _, c := range p.conns {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.fail(ErrClosed)
	}
}

// poll serves what is ready, and returns false when that was all: the runtime calls again when
// there is more. It returns true when the poller is closed.
func (p *poller) poll() bool {
	for !p.closing.Load() {
		// With a timeout of 0 the kernel does not wait, so the runtime needs not be told:
		// a raw call, which spares the scheduler's part of a system call.
		n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_WAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])), batch, 0, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			panic(fmt.Sprintf("wire: epoll_wait: %v", errno)) // only of a descriptor that is none
		case n == 0 && !p.busy && len(p.more) == 0:
			return false
		}
		again := slices.Clone(p.more)
		p.more = p.more[:0]
		for _, c := range again {
			c.queued = false
			p.serve(c, 0)
		}
		p.mu.Lock()
		for i := range n {
			p.ready[i] = p.conns[p.events[i].Fd]
		}
		p.mu.Unlock()
		for i := range n {
			if c := p.ready[i]; c != nil { // else it was closed meanwhile
				p.serve(c, p.events[i].Events)
			}
			p.ready[i] = nil
		}
		if len(p.more) == 0 && n < batch && !p.isBusy(int(n)) {
			return false // what has come since then makes the descriptor readable anew
		}
		runtime.Gosched()
		if len(p.more) == 0 && n < batch {
			rest := unix.NsecToTimespec(nap.Nanoseconds())
			_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&rest)), 0, 0) // a signal ends it, which does no harm
		}
	}
	return true
}

// serve has a connection handle events, and keeps it in more if it did not read all.
func (p *poller) serve(c *conn, events uint32) {
	if c.served(events) && !c.queued {
		c.queued = true
		p.more = append(p.more, c)
	}
}

// isBusy counts events, and reports whether there are so many that the poller had better nap.
func (p *poller) isBusy(n int) bool {
	now := p.transport.cfg.Now()
	if now-p.since >= busyPeriod {
		p.busy = p.served >= busyEvents && now-p.since < 2*busyPeriod
		p.since, p.served = now, 0
	}
	p.served += n
	return p.busy
}

// connect begins a connection, of which c.up tells.
func (p *poller) connect(addr netip.AddrPort) (*conn, error) {
	family, to, err := socketAddress(addr)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &conn{poller: p, fd: fd, addr: addr, up: make(chan error, 1)}
	// A request goes out at once, and each read brings when the kernel had it.
	err = errors.Join(
		os.NewSyscallError("setsockopt TCP_NODELAY", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)),
		os.NewSyscallError("setsockopt SO_TIMESTAMPNS", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)),
	)
	if err == nil {
		if err = unix.Connect(fd, to); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
		err = os.NewSyscallError("connect", err)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	if err := p.watch(c); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return c, nil
}

// watch has the poller serve a connection. Edge-triggered: the kernel tells once of what has
// come, and once of room to write.
func (p *poller) watch(c *conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing.Load() {
		return ErrClosed
	}
	watched := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(c.fd)}
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, c.fd, &watched); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	p.conns[int32(c.fd)] = c
	return nil
}

// socketAddress is an address as the kernel takes it.
func socketAddress(addr netip.AddrPort) (family int, to unix.Sockaddr, err error) {
	if addr.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}, nil
	}
	six := &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
	if zone := addr.Addr().Zone(); zone != "" { // of a link-local address: fe80::1%eth0
		link, err := net.InterfaceByName(zone)
		if err != nil {
			return 0, nil, err
		}
		six.ZoneId = uint32(link.Index)
	}
	return unix.AF_INET6, six, nil
}

// receive reads from a socket that does not block. late is how long the kernel had had the
// last of it.
func (p *poller) receive(fd int) (n int, late time.Duration, err error) {
	part := unix.Iovec{Base: &p.buffer[0], Len: readSize}
	message := unix.Msghdr{Iov: &part, Iovlen: 1, Control: &p.control[0], Controllen: uint64(len(p.control))}
	for {
		got, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), 0)
		switch errno {
		case 0:
			received(fd)
			return int(got), lateness(p.control[:message.Controllen]), nil
		case unix.EINTR:
		default:
			return 0, 0, errno
		}
	}
}

// lateness is the time since the kernel's time of receipt, which is by the wall clock.
func lateness(control []byte) time.Duration {
	const size = int(unsafe.Sizeof(unix.Cmsghdr{}))
	if len(control) < size+int(unsafe.Sizeof(unix.Timespec{})) {
		return 0
	}
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	if header.Level != unix.SOL_SOCKET || header.Type != unix.SCM_TIMESTAMPNS {
		return 0
	}
	at := (*unix.Timespec)(unsafe.Pointer(&control[size]))
	return max(time.Duration(time.Now().UnixNano()-at.Nano()), 1)
}
