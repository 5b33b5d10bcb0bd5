package wire

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Relay moves frames between two ports, through a line in each direction. Its methods may be
// called from any goroutine.
type Relay struct {
	sockets [2]int // of port 0, where host 1's frames come in, and of port 1
	wake    int    // an eventfd: something is to be done by run
	done    chan struct{}
	began   time.Time
	hole    atomic.Bool

	// run's own
	memory memory
	buffer Frame // what is read next

	mu      sync.Mutex
	lines   [2]*Line
	dropped int64 // frames that a port did not take, or a socket had no room for
	closing bool
}

// NewRelay begins to move frames between the interfaces with two indexes, in the network
// namespace of the calling thread. Each line has luck of its own from the seed.
func NewRelay(ports [2]int, link Link, seed uint64) (*Relay, error) {
	r := &Relay{sockets: [2]int{-1, -1}, wake: -1, done: make(chan struct{}), began: time.Now()}
	for i, port := range ports {
		r.lines[i] = NewLine(seed*2 + uint64(i))
		r.lines[i].Change(link[i])
		fd, err := packetSocket(port)
		if err != nil {
			r.release()
			return nil, fmt.Errorf("a relay's port: %w", err)
		}
		r.sockets[i] = fd
	}
	var err error
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		r.release()
		return nil, os.NewSyscallError("eventfd", err)
	}
	go r.run()
	return r, nil
}

// packetSocket reads all that an interface receives, and sends by it, in frames of the size that
// the hosts' kernels made.
func packetSocket(index int) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket AF_PACKET", err)
	}
	for _, option := range []struct {
		name        string
		level, what int
		value       int
	}{
		{"PACKET_VNET_HDR", unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
		{"PACKET_IGNORE_OUTGOING", unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{"PACKET_QDISC_BYPASS", unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1},
		// What comes while this thread waits for a CPU: 64 MB are half a second at 1 Gbit/s.
		{"SO_RCVBUFFORCE", unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64 << 20},
		{"SO_SNDBUFFORCE", unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 64 << 20},
	} {
		if err := unix.SetsockoptInt(fd, option.level, option.what, option.value); err != nil {
			unix.Close(fd)
			return -1, os.NewSyscallError(option.name, err)
		}
	}
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // in network order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// Change has other conditions from now on. What is on its way stays as it is.
func (r *Relay) Change(link Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.lines {
		l.Change(link[i])
	}
}

// Hole has all that comes in be lost, or not any more. What is on its way is lost too.
func (r *Relay) Hole(on bool) {
	r.hole.Store(on)
	if on {
		r.Cut()
	}
}

// Cut loses all that is on its way.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		l.Cut()
	}
}

// Counts returns those of both directions, and the frames that the relay itself lost because
// this machine was too busy. Those should be none.
func (r *Relay) Counts() (lines [2]Counts, dropped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.lines {
		lines[i] = l.Counts()
		if !r.closing { // the kernel's count is of the frames since it was last asked
			if s, err := unix.GetsockoptTpacketStats(r.sockets[i], unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				r.dropped += int64(s.Drops)
			}
		}
	}
	return lines, r.dropped
}

// Close ends the relay; no frame is moved when it returns.
func (r *Relay) Close() {
	r.mu.Lock()
	first := !r.closing
	r.closing = true
	r.mu.Unlock()
	if first {
		_, _ = unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	<-r.done
}

func (r *Relay) release() {
	for _, fd := range []int{r.sockets[0], r.sockets[1], r.wake} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// run is the relay's thread. It goes before others, as it needs little and everything waits
// for it: round robin at the lowest real-time priority, where the kernel lets it.
func (r *Relay) run() {
	defer close(r.done)
	defer r.release()
	runtime.LockOSThread() // and never unlocks it: the priority ends with the thread
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}, 0)

	r.buffer = r.memory.take(mostFrame)
	watched := []unix.PollFd{
		{Fd: int32(r.sockets[0]), Events: unix.POLLIN},
		{Fd: int32(r.sockets[1]), Events: unix.POLLIN},
		{Fd: int32(r.wake), Events: unix.POLLIN},
	}
	for {
		var rest *unix.Timespec // nil waits for a frame
		if next, any := r.send(); any {
			t := unix.NsecToTimespec(max(0, int64(next-r.now())))
			rest = &t
		}
		if _, err := unix.Ppoll(watched, rest, nil); err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("wire: ppoll: %v", err)) // only of wrong arguments
		}
		for i := range r.sockets {
			if watched[i].Revents != 0 {
				r.receive(i)
			}
		}
		r.mu.Lock()
		closing := r.closing
		r.mu.Unlock()
		if closing {
			return
		}
	}
}

func (r *Relay) now() time.Duration { return time.Since(r.began) }

// burst is how many frames are read before those that are due go out.
const burst = 64

func (r *Relay) receive(port int) {
	for range burst {
		n, err := unix.Read(r.sockets[port], r.buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // nothing is there, or the port is down: a cable is pulled
			return
		case n < prefix+ethernet || r.hole.Load():
			continue
		}
		var f Frame
		if n <= smallFrame {
			f = r.memory.take(smallFrame)[:n]
			copy(f, r.buffer)
		} else {
			f, r.buffer = r.buffer[:n], r.memory.take(mostFrame)
		}
		r.mu.Lock()
		r.lines[port].Take(r.now(), f)
		r.mu.Unlock()
	}
}

// send sends what is due, and returns when the next frame is, if one waits.
func (r *Relay) send() (next time.Duration, any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, l := range r.lines {
		for {
			f, ok := l.Due(r.now())
			if !ok {
				break
			}
			if _, err := unix.Write(r.sockets[1-i], f); err != nil && !errors.Is(err, unix.ENETDOWN) {
				r.dropped++
			}
			r.memory.give(f)
		}
		if due, waits := l.Next(); waits && (!any || due < next) {
			next, any = due, true
		}
	}
	return next, any
}

// smallFrame is what most frames fit in that are not TCP's data, and every packet of an
// Ethernet.
const smallFrame = 2 << 10

// memory has frames that are used again: fresh memory for each costs more than all copies.
type memory struct{ small, large []Frame }

func (m *memory) of(size int) *[]Frame {
	if size == smallFrame {
		return &m.small
	}
	return &m.large
}

// take returns memory of one of the two sizes.
func (m *memory) take(size int) Frame {
	free := m.of(size)
	n := len(*free) - 1
	if n < 0 {
		return make(Frame, size)
	}
	f := (*free)[n]
	*free = (*free)[:n]
	return f
}

// give takes it back. What a line has cut is of other sizes, and left to the collector.
func (m *memory) give(f Frame) {
	if c := cap(f); c == smallFrame || c == mostFrame {
		free := m.of(c)
		*free = append(*free, f[:c])
	}
}
