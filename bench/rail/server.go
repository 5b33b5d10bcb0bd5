package rail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/bench/observe"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// ServerConfig describes a target. Rails is required.
type ServerConfig struct {
	Rails []string // as Config.Rails, without Mem
	// Listen is the control connection's host:port. Default :18515.
	Listen string
	// Segment is the most memory that a client gets. Default as Config.Segment.
	Segment int64
	// Location and Matrix are as Config's, of this end.
	Location, Matrix string
	// Once ends the server after its first client.
	Once bool
	// Log gets a line for each client. Default none.
	Log io.Writer `json:"-"`
	// Logger is the rails'. Default slog.Default.
	Logger *slog.Logger `json:"-"`

	yield time.Duration // see Serve; less in tests
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *ServerConfig) Validate() error {
	var bad config.Faults
	if slices.Contains(c.Rails, Mem) {
		bad.Add("Rails", Mem, "it reaches this process only: run the client alone")
	} else {
		checkRails(&bad, c.Rails, false, false)
	}
	if c.Listen != "" {
		_, _, err := config.Address(c.Listen)
		bad.Check("Listen", err)
	}
	checkMemory(&bad, c.Segment, c.Location, c.Matrix)
	if left, ok := kvcache.Available(); ok && len(bad) == 0 && c.Segment > left {
		bad.Add("Segment", config.FormatSize(c.Segment), "this machine has %d MiB of memory left: lower it", left>>20)
	}
	return bad.Err("bench/rail.ServerConfig")
}

// A Server is a target that listens.
type Server struct {
	cfg    ServerConfig
	engine *transport.Engine
	lis    net.Listener

	turn    chan struct{} // holds one: the client that is served
	waiting atomic.Int64  // clients that have said hello
	logging sync.Mutex
}

// Listen opens the rails and the control connection's port. The caller calls Serve
// or Close.
func Listen(cfg ServerConfig) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Listen, ":"+DefaultPort)
	config.Default(&cfg.Location, topology.Any)
	config.Default(&cfg.Segment, DefaultSegment())
	config.Default(&cfg.Log, io.Discard)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	config.Default(&cfg.yield, helloTimeout)
	opened, err := rails.OpenAll(cfg.Rails, rails.Options{Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	engine, err := newEngine(cfg.Matrix, transport.Config{Rails: opened, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	lis, err := config.Listen("Listen", cfg.Listen)
	if err != nil {
		_ = engine.Close() // nothing was done with it
		return nil, err
	}
	return &Server{cfg: cfg, engine: engine, lis: lis, turn: make(chan struct{}, 1)}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() string { return s.lis.Addr().String() }

// Rails are its rails and where they are reached.
func (s *Server) Rails() (lines []string) {
	for _, r := range s.engine.Rails() {
		lines = append(lines, r.Name+" at "+r.Addr)
	}
	return lines
}

// Close ends a server that does not serve.
func (s *Server) Close() error { return errors.Join(s.lis.Close(), s.engine.Close()) }

// Serve serves one client after another until ctx is done, and returns ctx's error,
// or nil after the one client of Once. Who says hello and asks for nothing more within
// 10 s gives way if somebody waits. The server is closed.
func (s *Server) Serve(ctx context.Context) error {
	serving, end := context.WithCancel(ctx)
	defer end()
	context.AfterFunc(serving, func() { _ = s.lis.Close() })
	err := errors.Join(s.accept(serving, end), s.engine.Close())
	return errors.Join(ctx.Err(), err)
}

// target returns what serves a client.
func (s *Server) target(v *visitor) *target {
	return &target{engine: s.engine, allocate: rails.Allocator(s.cfg.Rails), most: s.cfg.Segment, location: s.cfg.Location, specs: s.cfg.Rails, control: v.conn.LocalAddr()}
}

// say writes what became of a client.
func (s *Server) say(v *visitor, text string) {
	s.logging.Lock()
	defer s.logging.Unlock()
	fmt.Fprintf(s.cfg.Log, "client %s: %s\n", v.conn.RemoteAddr(), text)
}

// A target serves one client.
type target struct {
	engine   *transport.Engine
	most     int64
	location string // of its memory
	allocate transport.Allocator
	specs    []string // rails as they were named
	control  net.Addr // of the control connection, at this end
	shared   bool     // the initiator is in this process: its CPU time is there

	host   *Host // before there was mem
	mem    []byte
	unmap  func() error // gives mem back; nil before it is there
	seed   uint64       // of what the memory had at first
	seg    *transport.Segment
	plan   *plan
	points int

	asked     atomic.Bool      // for a point
	reference *ReferenceServer // that runs, or nil
	echoes    []*echoServer    // of probes

	late atomic.Bool // it was ended because others waited
}

// serve answers one control connection from its hello until it ends.
func (t *target) serve(conn net.Conn) error {
	l := newLines(conn)
	m, err := greet(l)
	if err != nil {
		return err
	}
	return t.session(l, m)
}

// session answers a client that has said hello until it ends. The memory is gone when
// it returns.
func (t *target) session(l *lines, m *message) (err error) {
	defer func() { err = errors.Join(err, t.free()) }()
	for {
		answer, err := t.answer(m)
		if err != nil {
			answer = &message{Type: "error", Error: err.Error()}
		}
		if e := l.send(answer); e != nil || err != nil {
			return errors.Join(err, e)
		}
		switch m, err = l.receive(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (t *target) answer(m *message) (*message, error) {
	switch {
	case m.Type == "hello" && t.seg == nil:
		return t.welcome(m)
	case m.Type == "point" && t.seg != nil && m.Plan != nil:
		if err := m.Plan.validate(); err != nil {
			return nil, err
		}
		if m.Plan.Segment != int64(len(t.mem)) {
			return nil, fmt.Errorf("a point for %d bytes, and the segment has %d", m.Plan.Segment, len(t.mem))
		}
		t.plan = m.Plan
		t.points++
		t.asked.Store(true)
		if t.plan.Check && t.plan.Op == transport.Read {
			eachThread(t.plan.Threads, func(i int) { t.plan.source(t.mem, i) })
		}
		return &message{Type: "ready"}, nil
	case m.Type == "mark":
		if t.shared {
			return &message{Type: "usage"}, nil
		}
		return &message{Type: "usage", CPU: cpuSeconds()}, nil
	case m.Type == "reference" && t.seg != nil && m.Plan != nil && t.control != nil:
		return t.refer(m)
	case m.Type == "facts" && t.seg != nil && t.control != nil:
		return t.known(m), nil
	case m.Type == "clock":
		return &message{Type: "time", Clock: time.Now().UnixNano()}, nil
	case m.Type == "check" && t.plan != nil && len(m.Landed) == t.plan.Threads:
		if t.plan.Rounds {
			if t.points > 1 {
				return nil, errors.New("a point of rounds is the only one of its session: the memory is not as it was at first")
			}
			v, err := t.plan.checkAll(t.mem, m.Landed, t.seed^1)
			return &message{Type: "verdict", Verdict: &v}, err
		}
		v, err := t.plan.check(t.mem, m.Landed)
		return &message{Type: "verdict", Verdict: &v}, err
	}
	return nil, fmt.Errorf("%q makes no sense here", m.Type)
}

func (t *target) welcome(m *message) (_ *message, err error) {
	if m.Segment < 1 || m.Segment > t.most {
		return nil, fmt.Errorf("a segment of %d bytes is asked for, and this server gives up to %d: start it with a larger --segment, or ask for less", m.Segment, t.most)
	}
	t.host = root("/").host()
	if t.mem, t.unmap, err = t.allocate(int(m.Segment)); err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", m.Segment, err)
	}
	if err := topology.Bind(t.mem, t.location); err != nil {
		return nil, err
	}
	t.seed = m.Seed
	warm(t.mem, t.seed^1)
	if t.seg, err = t.engine.Register("target", t.mem, t.location); err != nil {
		return nil, err
	}
	info, here := t.seg.Info(), observe.Describe()
	answer := &message{Type: "welcome", Protocol: protocol, Info: &info, Machine: &here}
	for _, r := range info.Rails {
		answer.Rails = append(answer.Rails, r.Rail+" at "+r.Addr)
	}
	return answer, nil
}

// known returns what this end's kernel says, and has probes echoed until the session ends.
func (t *target) known(m *message) *message {
	t.asked.Store(true)
	answer := &message{Type: "known", Host: t.host}
	for i, r := range t.engine.Rails() {
		peer, at := "", echo{}
		if i < len(m.Facts) {
			peer = m.Facts[i].Addr
		}
		answer.Facts = append(answer.Facts, root("/").facts(t.specs[i], r.Name, r.Addr, peer))
		// A second question on this connection gets no more echoes.
		if host, _, err := net.SplitHostPort(r.Addr); err == nil && net.ParseIP(host) != nil && m.Echo && len(t.echoes) < len(t.specs) {
			if e, err := serveEcho(host); err == nil {
				t.echoes, at = append(t.echoes, e), e.echo
			}
		}
		answer.Echoes = append(answer.Echoes, at)
	}
	return answer
}

func (t *target) free() error {
	errs := []error{t.endReference()} // it uses the memory
	for _, e := range t.echoes {
		e.close()
	}
	if t.seg != nil {
		errs = append(errs, t.seg.Close())
	}
	if t.unmap != nil {
		errs = append(errs, t.unmap())
	}
	return errors.Join(errs...)
}

// check compares what landed.
func (p *plan) check(mem []byte, landed []landing) (verdict, error) {
	return verdicts(len(landed), func(i int) (verdict, error) { return p.destination(mem, i, landed[i]) })
}

// verdicts sums up f of each thread, all at once.
func verdicts(n int, f func(thread int) (verdict, error)) (sum verdict, err error) {
	each, errs := make([]verdict, n), make([]error, n)
	eachThread(n, func(i int) { each[i], errs[i] = f(i) })
	for _, v := range each {
		sum.add(v)
	}
	return sum, errors.Join(errs...)
}

// eachThread calls f for each thread of a point, and waits for all.
func eachThread(n int, f func(thread int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
