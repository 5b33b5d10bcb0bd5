package rails

import (
	"context"
	"fmt"
	"net"
	"sync"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// pipeKind is the kind of rail between engines of one process: the initiator copies.
var pipeKind = kind{
	name:  "pipe",
	what:  "pipe",
	forms: []string{"pipe"},
	flag:  []string{"pipe (engines of one process)"},
	help:  [][2]string{{"pipe", "between engines of one process"}},
	alone: true,
	near:  true,
	open: func(_ *Spec, opt Options) (transport.Rail, error) {
		p := &pipe{name: fmt.Sprintf("pipe/%d", opt.Index), areas: make(map[transport.Key]area), ends: make(map[*end]bool)}
		pipes.Lock()
		defer pipes.Unlock()
		pipes.open[p.Addr()] = p
		return p, nil
	},
}

// pipes are those that are open, by address. Who copies holds the lock for reading, who
// takes memory away for writing.
var pipes = struct {
	sync.RWMutex
	open map[string]*pipe
}{open: make(map[string]*pipe)}

// A pipe implements transport.Rail; pipes' lock guards its maps.
type pipe struct {
	name    string
	handler func(transport.Key, transport.Imm) error
	served  connection.Served
	areas   map[transport.Key]area // nil once closed
	ends    map[*end]bool          // that lead here, or from here
}

type area struct {
	mem      []byte
	access   transport.Access
	handling *sync.WaitGroup // immediates that came with its key
}

func (p *pipe) Name() string                                                { return p.name }
func (p *pipe) Addr() string                                                { return fmt.Sprintf("%p", p) }
func (p *pipe) HandleImmediates(f func(transport.Key, transport.Imm) error) { p.handler = f }
func (p *pipe) Fence(s transport.Secret)                                    { p.served.Fence(s) }

func (p *pipe) Register(mem []byte, access transport.Access) (transport.Key, error) {
	if err := access.Within(int64(len(mem))); err != nil {
		return 0, err
	}
	pipes.Lock()
	defer pipes.Unlock()
	if p.areas == nil {
		return 0, net.ErrClosed
	}
	key := transport.NewKey()
	p.areas[key] = area{mem, access, new(sync.WaitGroup)}
	return key, nil
}

func (p *pipe) Deregister(key transport.Key) error {
	pipes.Lock()
	a, ok := p.areas[key]
	closed := p.areas == nil
	delete(p.areas, key)
	pipes.Unlock()
	switch {
	case closed:
		return net.ErrClosed
	case !ok:
		return transport.ErrBadKey
	}
	a.handling.Wait()
	return nil
}

func (p *pipe) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	pipes.Lock()
	defer pipes.Unlock()
	to := pipes.open[addr]
	switch {
	case p.areas == nil:
		return nil, net.ErrClosed
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case to == nil:
		return nil, fmt.Errorf("%w: no pipe at %s", transport.ErrUnreachable, addr)
	}
	e := &end{from: p, to: to, secret: transport.NewSecret(), more: make(chan struct{}, 1), over: make(chan struct{})}
	p.ends[e], to.ends[e] = true, true
	go e.run()
	return e, to.served.Add(e.secret.Name(), e)
}

func (p *pipe) Close() error {
	pipes.Lock()
	delete(pipes.open, p.Addr())
	p.areas = nil
	var over []<-chan struct{}
	for e := range p.ends {
		over = append(over, e.over)
		if e.from == p {
			e.Cut(net.ErrClosed)
		} else {
			e.Cut(fmt.Errorf("%w: %s is closed", transport.ErrUnreachable, p.name))
		}
	}
	pipes.Unlock()
	for _, o := range over {
		<-o
	}
	return nil
}

// carry carries a slice out here, at its target.
func (p *pipe) carry(s *transport.Slice) error {
	a, err := p.copy(s)
	if err == nil && s.HasImm {
		defer a.handling.Done()
		err = p.handler(s.Key, s.Imm)
	}
	return err
}

func (p *pipe) copy(s *transport.Slice) (a area, err error) {
	pipes.RLock()
	defer pipes.RUnlock()
	if a = p.areas[s.Key]; p.areas == nil {
		return a, fmt.Errorf("%w: %s is closed", transport.ErrUnreachable, p.name)
	}
	if a.access.None() {
		return a, transport.ErrBadKey
	}
	if _, err = a.access.Check(s.Op, s.Offset, int64(len(s.Local)), 0); err != nil {
		return a, err
	}
	if len(s.Local) > 0 && s.Op == transport.Write {
		copy(a.mem[s.Offset:], s.Local)
	} else if len(s.Local) > 0 {
		copy(s.Local, a.mem[s.Offset:])
	}
	if s.HasImm {
		a.handling.Add(1) // while the area cannot go
	}
	return a, nil
}

// An end implements transport.Endpoint and connection.Conn.
type end struct {
	from, to   *pipe
	secret     transport.Secret
	more, over chan struct{}

	mu    sync.Mutex
	queue []*transport.Slice
	room  connection.Room
	err   error // why it is broken
}

func (e *end) Secret() transport.Secret { return e.secret }
func (e *end) Over() <-chan struct{}    { return e.over }

func (e *end) Post(slices []*transport.Slice) (n int, err error) {
	defer e.wake()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		n = e.room.Take(slices)
		e.queue = append(e.queue, slices[:n]...)
	}
	return n, e.err
}

func (e *end) Cut(why error) {
	defer e.wake()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = why
	}
}

func (e *end) Close() error {
	e.Cut(net.ErrClosed)
	<-e.over
	return nil
}

func (e *end) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// next is the slice at the head of the queue, and why it cannot be carried.
func (e *end) next() (s *transport.Slice, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 {
		s, e.queue = e.queue[0], e.queue[1:]
		e.room.Free(1, int64(len(s.Local)))
	}
	return s, e.err
}

// run carries slices one by one until the end is broken, and completes the rest.
func (e *end) run() {
	defer close(e.over)
	clean, refused := 0, error(nil) // slices since one was refused, and why
	for s, err := e.next(); s != nil || err == nil; s, err = e.next() {
		if s == nil {
			<-e.more
			continue
		}
		if err == nil && s.HasImm && clean < s.Behind {
			err = refused
		} else if err == nil {
			err = e.to.carry(s)
		}
		if clean++; transport.Refused(err) {
			clean, refused = 0, err
		}
		if err != nil && !transport.Refused(err) {
			e.Cut(err)
		}
		s.Complete(err)
	}
	e.to.served.Remove(e.secret.Name(), e)
	pipes.Lock()
	defer pipes.Unlock()
	delete(e.from.ends, e)
	delete(e.to.ends, e)
}
