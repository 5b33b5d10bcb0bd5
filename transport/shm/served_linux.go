package shm

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/descriptor"
	"kvferry/transport/process"
)

// A served connection is the target's side: one goroutine answers for keys. Immediates are handled by the
// rail's goroutine that listens at the bell, or by this one when it is knocked at. What is copied neither
// sees, but for the announcements in the control page.
type served struct {
	rail  *Rail
	c     *net.UnixConn
	pid   int            // written by greet under mu, for Evict
	pidfd int            // -1 before the peer is known, and when over
	name  transport.Name // of its hello
	over  chan struct{}  // nothing is touched any more
	lent  map[*descriptor.Memory]struct{}

	guesses connection.Guesses // of take

	calls   atomic.Int64 // of drain, since it began
	ring    sync.Mutex   // held by who handles immediates
	handled uint32       // how many were; guarded by ring

	handling atomic.Bool  // an immediate
	known    atomic.Bool  // it has shown a good key
	idle     atomic.Int64 // since when, Unix nanoseconds

	mu         sync.Mutex
	ctl        *control // nil before the welcome, and when over
	wasCut     bool
	number     int                // at the bell; -1 for none
	wrong      error              // what the initiator has put into the ring
	slots      map[uint32]*region // in use
	unused     []uint32           // below top
	top        uint32
	generation uint64
	seen       uint64 // copies that were begun, when somebody last looked
	stuck      error  // the rail's Close has given up waiting for it
}

func newServed(r *Rail, c *net.UnixConn) *served {
	s := &served{rail: r, c: c, pidfd: -1, number: -1, over: make(chan struct{}), lent: make(map[*descriptor.Memory]struct{}), slots: make(map[uint32]*region)}
	s.idle.Store(time.Now().UnixNano())
	return s
}

// serve runs a connection from hello to end.
func (s *served) serve() {
	r := s.rail
	defer r.wg.Done()
	err := s.greet()
	if err == nil {
		err = s.take()
	}
	s.cut()
	if stopped := s.wait(0, true); stopped != nil {
		r.mu.Lock()
		r.err = errors.Join(r.err, stopped)
		r.mu.Unlock()
	}
	s.settle()
	r.dismiss(s)
	if s.wrong != nil {
		err = s.wrong
	}
	close(s.over)
	log := r.cfg.Logger.With("rail", r.cfg.Name, "pid", s.pid)
	switch {
	case errors.Is(err, transport.ErrProtocol), errors.Is(err, errStranger):
		if held, ok := r.strange.Line(time.Now()); ok {
			log.Warn("transport/shm: connection dropped", "err", err, "since_last_line", held)
		}
	case !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed):
		log.Debug("transport/shm: connection lost", "err", err)
	}
}

// errStranger: who connects is another user.
var errStranger = errors.New("it is another user's process")

// greet reads the hello and answers with the control page.
func (s *served) greet() error {
	cred, err := process.Of(s.c)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.pid = cred.PID
	s.mu.Unlock()
	if cred.UID != os.Getuid() {
		return fmt.Errorf("%w: uid %d", errStranger, cred.UID)
	}
	if s.pidfd, err = pidfdOf(s.c, cred.PID); err != nil {
		return err
	}
	if err := s.c.SetReadDeadline(time.Now().Add(helloWithin)); err != nil {
		return err
	}
	var b [maxMessage]byte
	n, err := receive(s.c, b[:], nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: no hello within %v", transport.ErrProtocol, helloWithin)
	}
	if err != nil {
		return err
	}
	name, err := parseHello(b[:n])
	if err != nil {
		return err
	}
	if err := s.c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ctl, err := newControl()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ctl = ctl
	if s.wasCut {
		ctl.cut()
	}
	s.mu.Unlock()
	if err := s.rail.byName.Add(name, s); err != nil {
		return err
	}
	s.name = name
	w := welcome{at: addressOf(s.rail.probe[:]), probe: *s.rail.probe}
	if err := send(s.c, w.append(nil), ctl.f.fd); err != nil {
		return err
	}
	if s.number, err = s.rail.bell.join(s); err != nil {
		return err
	}
	bell := answer{typ: typeBell, number: uint32(s.number)}
	return send(s.c, bell.append(nil), s.rail.bell.f.fd)
}

// take answers messages until the connection ends.
func (s *served) take() error {
	var b [askLen + 1]byte
	for {
		n, err := receive(s.c, b[:], nil)
		if err != nil {
			return err
		}
		r, err := parseRequest(b[:n])
		if err != nil {
			return err
		}
		s.idle.Store(time.Now().UnixNano())
		if r.typ == typeAsk {
			if err = s.answer(&r); err != nil {
				return err
			}
		}
		s.drain()
	}
}

// immediate handles one.
func (s *served) immediate(key transport.Key, imm transport.Imm) code {
	g := s.rail.region(key)
	if g == nil || !g.acquire() {
		return codeBadKey
	}
	defer g.release()
	s.known.Store(true)
	s.handling.Store(true)
	defer s.handling.Store(false)
	if s.rail.handler == nil {
		return codeOK
	}
	switch err := s.rail.handler(key, imm); err {
	case nil:
		return codeOK
	case transport.ErrDelivered:
		return codeDelivered
	case transport.ErrAccess:
		return codeAccess
	case transport.ErrBusy:
		return codeBusy
	case transport.ErrBounds:
		return codeBounds
	default:
		return codeBadKey
	}
}

// answer tells what a key opens.
func (s *served) answer(r *request) error {
	a := answer{typ: typeGrant, code: codeBadKey, seq: r.seq}
	var at grantedSlot
	g := s.rail.region(r.key)
	if g != nil {
		at, a.code = g.grant(s)
	}
	if a.code != codeOK {
		return cmp.Or(send(s.c, a.append(nil), -1), s.guesses.Refused(r.key, time.Now()))
	}
	s.known.Store(true)
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		if g.access.May(op) {
			a.may |= 1 << op
		}
	}
	ranges := g.access.Ranges()
	a.slot, a.generation, a.total = at.slot, at.generation, uint32(len(ranges))
	a.at, a.length = addressOf(g.mem), uint64(len(g.mem))
	fd, gave := -1, false
	if g.file != nil {
		a.file, a.offset = g.file.ID, g.offset
		if _, again := s.lent[g.file]; !again {
			var err error
			switch fd, err = g.file.Lend(s, func() { s.forget(g.file) }); {
			case errors.Is(err, net.ErrClosed):
				a = answer{typ: typeGrant, code: codeBadKey, seq: r.seq}
				return send(s.c, a.append(nil), -1)
			case err != nil: // the key is good: the initiator tries again over another connection
				return err
			}
			s.lent[g.file], gave = struct{}{}, true
			defer unix.Close(fd)
		}
	}
	for first := true; first || len(ranges) > 0; first = false {
		n := min(len(ranges), maxRanges)
		a.ranges, ranges = ranges[:n], ranges[n:]
		if err := send(s.c, a.append(nil), fd); err != nil {
			return err
		}
		fd = -1
	}
	if gave && g.file.Gone() { // the word that it goes may have overtaken it
		s.forget(g.file)
	}
	return nil
}

// forget has the initiator let go of a file. It does not wait: an initiator that does not read is cut.
func (s *served) forget(f *descriptor.Memory) {
	a := answer{typ: typeForget, file: f.ID}
	if sendNow(s.c, a.append(nil)) != nil {
		s.cut()
	}
}

// open takes a slot for a region. It is false when none is left, or the connection is over.
func (s *served) open(g *region) (at grantedSlot, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.unused); {
	case s.ctl == nil:
		return at, false
	case n > 0:
		at.slot, s.unused = s.unused[n-1], s.unused[:n-1]
	case s.top < maxSlots:
		at.slot = s.top
		s.top++
	default:
		return at, false
	}
	s.generation++
	at.generation = s.generation
	s.slots[at.slot] = g
	s.ctl.set(at.slot, at.generation)
	return at, true
}

// shut closes a slot: no copy begins under it any more.
func (s *served) shut(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl != nil {
		s.ctl.set(slot, 0)
	}
}

// free lets a slot that was shut be used again: nothing is copied under it.
func (s *served) free(slot uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[slot] != nil {
		delete(s.slots, slot)
		s.unused = append(s.unused, slot)
	}
}

// announced is what the initiator says that it copies; 0 if nothing, or when the connection is over. It is an
// error that the rail's Close has given up waiting for it.
func (s *served) announced() (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctl == nil {
		return 0, s.stuck
	}
	a, _ := s.ctl.busy()
	return a, nil
}

// giveUp notes that a copy may yet go on.
func (s *served) giveUp() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stuck = fmt.Errorf("process %d has stopped in the middle of a WRITE, and may yet go on: the memory must not be used for anything else", s.pid)
	return s.stuck
}

// dead says whether the initiator's process has ended, or the connection is over and nobody has given up waiting for it.
func (s *served) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pidfd < 0 {
		return s.stuck == nil
	}
	fds := []unix.PollFd{{Fd: int32(s.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// wait returns when the initiator copies nothing under a slot that was shut, or, of a connection that was
// cut, nothing at all; or when it has ended. READs that have stalled it does not wait for. It returns
// an error only if the rail's Close has waited for long enough.
func (s *served) wait(slot uint32, all bool) error {
	began, told := time.Now(), false
	for pause, spins := 50*time.Microsecond, 0; ; spins++ {
		a, stuck := s.announced()
		if stuck != nil {
			return stuck
		}
		if a == 0 || !all && a>>1 != uint64(slot)+1 {
			break
		}
		if spins < 200 { // a copy of 1 MiB takes 100 us
			runtime.Gosched()
			continue
		}
		if s.dead() {
			break
		}
		if waited := time.Since(began); waited > stallGrace {
			if a&1 == 1 {
				break
			}
			if !told {
				told = true
				s.cut()
				s.rail.cfg.Logger.Warn("transport/shm: a process has stopped in the middle of a WRITE: the memory is not used again until it goes on or ends",
					"rail", s.rail.cfg.Name, "pid", s.pid)
			}
		}
		select {
		case <-s.rail.abandoned:
			return s.giveUp()
		default:
		}
		time.Sleep(pause)
		pause = min(2*pause, 5*time.Millisecond)
	}
	seenEnd()
	return nil
}

// settle gives back all that the connection has: nothing is copied any more. It waits for the immediate that
// is being handled.
func (s *served) settle() {
	s.ring.Lock()
	defer s.ring.Unlock()
	if s.number >= 0 {
		s.rail.bell.leave(s.number)
	}
	s.mu.Lock()
	slots := s.slots
	s.slots = nil
	if s.ctl != nil {
		s.ctl.close()
		s.ctl = nil
	}
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd)
		s.pidfd = -1
	}
	s.mu.Unlock()
	for _, g := range slots {
		g.forget(s)
	}
	for f := range s.lent {
		f.Return(s)
	}
}

// Standing implements connection.Guest. A peer that copies is seen by the number of its copies.
func (s *served) Standing() connection.Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := s.handling.Load()
	if s.ctl != nil {
		announced, count := s.ctl.busy()
		busy = busy || announced != 0
		if count != s.seen {
			s.seen = count
			s.idle.Store(time.Now().UnixNano())
		}
	}
	return connection.Standing{Busy: busy, Known: s.known.Load(), Idle: time.Unix(0, s.idle.Load())}
}

// Evict implements connection.Guest.
func (s *served) Evict(why error) {
	s.mu.Lock()
	pid := s.pid
	s.mu.Unlock()
	s.rail.cfg.Logger.Debug("transport/shm: connection ended", "rail", s.rail.cfg.Name, "pid", pid, "err", why)
	s.cut()
}

// Cut implements connection.Conn.
func (s *served) Cut(error) { s.cut() }

// Over implements connection.Conn.
func (s *served) Over() <-chan struct{} { return s.over }

// uncut is the control page of a connection that is not cut, or nil.
func (s *served) uncut() *control {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wasCut {
		return nil
	}
	return s.ctl
}

// breach cuts the connection for what the initiator has put into the ring.
func (s *served) breach(err error) {
	s.mu.Lock()
	s.wrong = err
	s.mu.Unlock()
	s.cut()
}

// cut ends the connection, from any goroutine: no copy begins any more.
func (s *served) cut() {
	s.mu.Lock()
	s.wasCut = true
	if s.ctl != nil {
		s.ctl.cut()
	}
	s.mu.Unlock()
	_ = s.c.Close()
}

var _ connection.Conn = (*served)(nil)
