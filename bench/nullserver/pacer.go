package nullserver

import (
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"kvferry/bench/stats"
	"kvferry/internal/clock"
)

// A pacer writes tokens at their times. All that it has to write waits in two queues: first
// tokens (and whole answers), and those that follow. The second is in order of time by
// itself, as the gap is always the same; the first is nearly, and is kept so.
type pacer struct {
	clock clock.Clock
	timer clock.Timer
	itl   time.Duration
	woken chan struct{} // something new has come that may be due earlier

	mu     sync.Mutex
	firsts []*stream
	done   chan struct{}
	closed bool

	next []*stream // the goroutine's own
	head int       // of next
	late stats.Histogram
}

// A stream is an answer that is being written.
type stream struct {
	due  time.Duration
	conn net.Conn
	fd   uintptr // of conn, which stays open as long as the pacer has the stream
	left int     // tokens
	// What is written before the first token, for each, for the last, and after it. each, if
	// there is one, makes a token's event of how many there are with it.
	begin, token, last, end []byte
	each                    func(n int) []byte
	written                 int
	over                    chan error // one
}

func newPacer(c clock.Clock, itl time.Duration) (*pacer, error) {
	timer, err := c.NewTimer()
	if err != nil {
		return nil, err
	}
	p := &pacer{clock: c, timer: timer, itl: itl, woken: make(chan struct{}, 1), done: make(chan struct{})}
	go p.run()
	return p, nil
}

func (p *pacer) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake()
	<-p.done
}

func (p *pacer) wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

func (p *pacer) lateness() stats.Histogram {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all stats.Histogram
	all.Merge(&p.late)
	return all
}

// whole writes an answer at one time.
func (p *pacer) whole(c net.Conn, due time.Duration, answer []byte) error {
	return p.add(&stream{due: due, conn: c, left: 1, last: answer})
}

// stream writes an answer token by token, the first when it is due.
func (p *pacer) stream(c net.Conn, due time.Duration, a *api, q *question) error {
	return p.add(&stream{
		due: due, conn: c, left: q.tokens,
		begin: []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"),
		token: []byte(chunks(a.token(q))), last: []byte(chunks(a.last(q))), end: []byte(chunks(a.end(q)) + "0\r\n\r\n"),
		each: a.each(q),
	})
}

// add returns when the stream is over. An error is of its connection.
func (p *pacer) add(s *stream) error {
	s.over = make(chan error, 1)
	raw, err := s.conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Control(func(fd uintptr) { s.fd = fd }); err != nil {
		return err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return net.ErrClosed
	}
	at := len(p.firsts)
	for at > 0 && p.firsts[at-1].due > s.due {
		at--
	}
	p.firsts = slices.Insert(p.firsts, at, s)
	p.mu.Unlock()
	p.wake()
	return <-s.over
}

func (p *pacer) run() {
	defer close(p.done)
	defer p.timer.Close()
	for writes := 0; ; {
		p.mu.Lock()
		s, closed := p.earliest(), p.closed
		if closed {
			for ; s != nil; s = p.earliest() {
				p.take(s)
				s.over <- net.ErrClosed
			}
			p.mu.Unlock()
			return
		}
		now := p.clock.Now()
		if s != nil && s.due <= now {
			p.take(s)
			p.late.Add(now - s.due)
			p.mu.Unlock()
			p.write(s)
			if writes++; writes%64 == 0 {
				runtime.Gosched() // a pacer that is behind never waits, and requests must be read
			}
			continue
		}
		n := len(p.firsts) + len(p.next) - p.head
		p.mu.Unlock()
		if s != nil {
			p.timer.Set(p.wakeUp(s.due, n))
		}
		select {
		case <-p.timer.C():
		case <-p.woken:
		}
	}
}

// With more streams than crowd the pacer wakes at whole ticks only, and writes all that has
// become due: to arm a timer for each of 100,000 tokens a second took a seventh of its CPU.
const (
	crowd = 1000
	tick  = 100 * time.Microsecond
)

// wakeUp is when to look again, with n streams of which the first is due then.
func (p *pacer) wakeUp(due time.Duration, n int) time.Duration {
	if n <= crowd {
		return due
	}
	return (due + tick - 1).Truncate(tick)
}

// earliest is what is to be written next, nil for nothing.
func (p *pacer) earliest() *stream {
	switch {
	case p.head == len(p.next) && len(p.firsts) == 0:
		return nil
	case p.head == len(p.next):
		return p.firsts[0]
	case len(p.firsts) == 0 || p.next[p.head].due <= p.firsts[0].due:
		return p.next[p.head]
	}
	return p.firsts[0]
}

// take removes the earliest from its queue.
func (p *pacer) take(s *stream) {
	if len(p.firsts) > 0 && p.firsts[0] == s {
		p.firsts[0] = nil
		p.firsts = p.firsts[1:]
		return
	}
	p.next[p.head] = nil
	if p.head++; p.head == len(p.next) {
		p.next, p.head = p.next[:0], 0
	} else if p.head > 1024 && p.head > len(p.next)/2 {
		n := copy(p.next, p.next[p.head:])
		clear(p.next[n:])
		p.next, p.head = p.next[:n], 0
	}
}

// write writes one token, and what stands before or after it.
func (p *pacer) write(s *stream) {
	s.left--
	s.written++
	text := s.token
	if s.each != nil {
		text = s.each(s.written)
	}
	if s.left == 0 && s.each != nil {
		text = append(text, s.end...)
	} else if s.left == 0 {
		text = append(s.last[:len(s.last):len(s.last)], s.end...)
	}
	if s.begin != nil {
		text = append(s.begin, text...)
		s.begin = nil
	}
	// The kernel takes it at once, unless the client does not read: then somebody else waits
	// for that, not the pacer.
	// The raw call spares the locks of net.Conn, an eighth of what a token cost.
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, s.fd, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)))
	switch {
	case errno == syscall.EAGAIN || errno == syscall.EINTR:
		n = 0
	case errno != 0:
		p.wrote(s, errno, false)
		return
	}
	if int(n) < len(text) {
		go func() {
			_, err := s.conn.Write(text[n:])
			p.wrote(s, err, true)
		}()
		return
	}
	p.wrote(s, nil, false)
}

// wrote goes on with a stream after a token.
func (p *pacer) wrote(s *stream, err error, elsewhere bool) {
	if err != nil || s.left == 0 {
		s.over <- err
		return
	}
	s.due += p.itl
	if !elsewhere {
		p.next = append(p.next, s)
		return
	}
	p.mu.Lock()
	p.firsts = slices.Insert(p.firsts, 0, s) // it is late already
	p.mu.Unlock()
	p.wake()
}
