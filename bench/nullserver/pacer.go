package nullserver

import (
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"kvferry/bench/figure"
	"kvferry/clock"
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
	late figure.Histogram
}

// A stream is an answer that is being written.
type stream struct {
	due  time.Duration
	conn net.Conn
	raw  syscall.RawConn
	left int // tokens
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

func (p *pacer) lateness() figure.Histogram {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all figure.Histogram
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
	var err error
	if s.raw, err = s.conn.(syscall.Conn).SyscallConn(); err != nil {
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
	for {
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
			continue
		}
		p.mu.Unlock()
		if s != nil {
			p.timer.Set(s.due)
		}
		select {
		case <-p.timer.C():
		case <-p.woken:
		}
	}
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
	var n int
	var err error
	if ctl := s.raw.Write(func(fd uintptr) bool {
		n, err = syscall.Write(int(fd), text)
		return true
	}); ctl != nil {
		err = ctl
	}
	switch {
	case err == syscall.EAGAIN || err == nil && n < len(text):
		go func() {
			_, err := s.conn.Write(text[max(n, 0):])
			p.wrote(s, err, true)
		}()
	default:
		p.wrote(s, err, false)
	}
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
