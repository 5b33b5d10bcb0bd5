package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/process"
)

const (
	// inlineBytes is how much Carry moves on its caller's goroutine: some 10 us of copying, which is
	// what it takes to wake another.
	inlineBytes = 128 << 10
	// runBytes and runSlices end what is copied under one announcement, and so what Deregister waits
	// for: some 100 us.
	runBytes  = 1 << 20
	runSlices = 256
	// answerWithin is how long who has sent an immediate waits for the answer: that takes 5 us where
	// both ends share a core, and ten times that where another one has to be woken. What is answered later is told over the socket.
	answerWithin = 50 * time.Microsecond
	// manyGrants is when those that are closed are looked for.
	manyGrants = 256
)

// An endpoint is the initiator's side of a connection.
//
//	Queue ──► queue ──► carry ──► copied: Complete
//	                      └────── immediates: sent ──► await, or receive ──► Complete
//
// One goroutine at a time carries: the caller of Carry where there is little to do, else the
// endpoint's own. Who has carried an immediate awaits its answer for a while; one at a time, who has all
// answers then. After that they are told over the socket.
type endpoint struct {
	rail    *Rail
	secret  transport.Secret
	c       *net.UnixConn
	pid     int
	ctl     *control
	bell    *bell
	number  int           // of the connection, at the bell
	kick    chan struct{} // queue is not empty
	broken  chan struct{} // closed when err is set
	over    chan struct{} // everything is completed
	answers chan granted  // to ask
	asked   atomic.Uint64 // sequence number that answers are for; 0: none is waited for

	mu       sync.Mutex
	queue    []*transport.Slice
	head     int // of queue: those before it are carried
	room     connection.Room
	carrying bool
	awaiting bool
	rested   *sync.Cond         // carrying and awaiting are false
	sent     []*transport.Slice // immediates without an answer
	acked    uint32             // how many have one
	gone     []uint32           // files to let go of
	err      error

	// Of who carries.
	grants  map[transport.Key]*grant
	files   map[uint32]*mapping
	run     []*transport.Slice
	good    []*transport.Slice
	pieces  []piece
	vector  process.Vector
	message []byte
	seq     uint64 // of asks
	told    bool   // an immediate was sent
	clean   int    // slices since one was refused
	refused error  // why that was
}

// granted is a part of a grant, with the descriptor that came with it or -1.
type granted struct {
	answer
	fd int
}

// A grant is what a key opens.
type grant struct {
	grantedSlot
	access transport.Access
	near   int      // of transport.Access.Check
	file   uint32   // 0: the memory is no file
	mem    *mapping // nil without a file
	offset uint64   // in mem, of the key's memory
	at     uint64   // its address in the target
}

func newEndpoint(r *Rail, c *net.UnixConn) *endpoint {
	ep := &endpoint{
		rail: r, secret: transport.NewSecret(), c: c,
		kick: make(chan struct{}, 1), broken: make(chan struct{}), over: make(chan struct{}), answers: make(chan granted),
		grants: make(map[transport.Key]*grant), files: make(map[uint32]*mapping),
	}
	ep.rested = sync.NewCond(&ep.mu)
	return ep
}

// introduce says hello, and makes sure that the peer is a process whose memory this one may touch.
func (ep *endpoint) introduce(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = ep.c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	cred, err := process.Of(ep.c)
	if err != nil {
		return err
	}
	if cred.UID != os.Getuid() {
		return fmt.Errorf("it is a process of user %d", cred.UID)
	}
	ep.pid = cred.PID
	if err := send(ep.c, appendHello(nil, ep.secret.Name()), -1); err != nil {
		return err
	}
	var b [welcomeLen + 1]byte
	fd := -1
	n, err := receive(ep.c, b[:], &fd)
	if err != nil {
		return err
	}
	w, err := parseWelcome(b[:n])
	if err == nil && fd < 0 {
		err = errControl
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return err
	}
	if ep.ctl, err = openControl(fd); err != nil {
		return err
	}
	if err := ep.openBell(b[:]); err != nil {
		ep.unmap()
		return err
	}
	var found [16]byte
	ep.vector.Add(found[:], w.at)
	err = ep.vector.Read(ep.pid)
	ep.vector.Reset()
	if err == nil && found != w.probe {
		err = fmt.Errorf("process %d is not the one that answers", ep.pid)
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		ep.unmap()
	}
	return err
}

// openBell maps what comes behind the welcome. It uses b.
func (ep *endpoint) openBell(b []byte) error {
	fd := -1
	n, err := receive(ep.c, b, &fd)
	if err != nil {
		return err
	}
	a, err := parseAnswer(b[:n])
	if err == nil && (a.typ != typeBell || fd < 0 || a.number >= maxRings) {
		err = errForm
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return err
	}
	ep.number = int(a.number)
	ep.bell, err = openBell(fd)
	return err
}

// unmap lets go of the pages that are shared with the target.
func (ep *endpoint) unmap() {
	ep.ctl.close()
	if ep.bell != nil {
		ep.bell.close()
	}
}

// Secret implements transport.Endpoint.
func (ep *endpoint) Secret() transport.Secret { return ep.secret }

// Post implements transport.Endpoint.
func (ep *endpoint) Post(slices []*transport.Slice) (int, error) {
	n, err := ep.Queue(slices)
	if n > 0 {
		ep.wake()
	}
	return n, err
}

// Queue implements transport.Carrier.
func (ep *endpoint) Queue(slices []*transport.Slice) (int, error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.err != nil {
		return 0, ep.err
	}
	n := ep.room.Take(slices)
	if ep.head > len(ep.queue)/2 { // a queue that is never empty does not grow for that
		left := copy(ep.queue, ep.queue[ep.head:])
		clear(ep.queue[left:])
		ep.queue, ep.head = ep.queue[:left], 0
	}
	ep.queue = append(ep.queue, slices[:n]...)
	return n, nil
}

// Carry implements transport.Carrier.
func (ep *endpoint) Carry() {
	if ep.carry(inlineBytes) {
		ep.await()
	}
}

func (ep *endpoint) wake() {
	select {
	case ep.kick <- struct{}{}:
	default:
	}
}

// Close implements transport.Endpoint.
func (ep *endpoint) Close() error {
	ep.fail(net.ErrClosed)
	<-ep.over
	return nil
}

// fail breaks the endpoint; the first reason stands.
func (ep *endpoint) fail(err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.failed(err)
}

// failed is fail, by who holds ep.mu.
func (ep *endpoint) failed(err error) {
	if ep.err == nil {
		ep.err = err
		close(ep.broken)
		_ = ep.c.Close()
	}
}

// lost breaks the endpoint with an error that has its slices tried again, and returns why it is broken.
func (ep *endpoint) lost(err error) error {
	if errors.Is(err, transport.ErrProtocol) {
		ep.fail(err)
	} else {
		ep.fail(fmt.Errorf("%w: connection lost: %w", transport.ErrUnreachable, err))
	}
	return ep.why()
}

// why is what the endpoint is broken by, or nil.
func (ep *endpoint) why() error {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return ep.err
}

// work carries what others have queued, until the endpoint breaks.
func (ep *endpoint) work() {
	for {
		select {
		case <-ep.kick:
			if ep.carry(-1) {
				ep.await()
			}
		case <-ep.broken:
			return
		}
	}
}

// live runs the endpoint until it breaks, and completes the slices left.
func (ep *endpoint) live() {
	var both sync.WaitGroup
	both.Go(ep.work)
	both.Go(ep.receive)
	both.Wait()
	ep.mu.Lock()
	for ep.carrying || ep.awaiting {
		ep.rested.Wait()
	}
	err := ep.err
	rest := slices.Concat(ep.sent, ep.queue[ep.head:])
	ep.sent, ep.queue, ep.head = nil, nil, 0
	ep.mu.Unlock()
	for _, m := range ep.files {
		_ = unix.Munmap(m.mem)
	}
	ep.unmap()
	ep.rail.mu.Lock()
	delete(ep.rail.eps, ep)
	ep.rail.mu.Unlock()
	transport.CompleteAll(rest, err)
	close(ep.over)
	ep.rail.wg.Done()
}

// receive takes the target's answers.
func (ep *endpoint) receive() {
	var b [maxMessage + 1]byte
	for {
		fd := -1
		n, err := receive(ep.c, b[:], &fd)
		if err == nil {
			err = ep.take(b[:n], fd)
		}
		if err != nil {
			_ = ep.lost(err)
			return
		}
		ep.heard()
	}
}

// take files an answer. It uses fd up.
func (ep *endpoint) take(b []byte, fd int) error {
	a, err := parseAnswer(b)
	if err == nil && fd >= 0 && (a.typ != typeGrant || a.file == 0 || a.code != codeOK) {
		err = errForm
	}
	if err == nil {
		switch a.typ {
		case typeTold:
			return nil
		case typeBell:
			return errForm
		case typeForget:
			ep.mu.Lock()
			ep.gone = append(ep.gone, a.file)
			ep.mu.Unlock()
			ep.wake()
			return nil
		}
		if a.seq == ep.asked.Load() {
			select {
			case ep.answers <- granted{a, fd}:
				return nil
			case <-ep.broken:
				err = net.ErrClosed
			}
		} else {
			err = fmt.Errorf("%w: a grant that nobody has asked for", transport.ErrProtocol)
		}
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	return err
}
