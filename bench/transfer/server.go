package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"kvferry/bench"
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
}

// Validate lists every fault, naming the field and the fix.
func (c *ServerConfig) Validate() error {
	var errs []error
	if err := validRails(c.Rails, false); err != nil {
		errs = append(errs, fmt.Errorf("transfer: ServerConfig.Rails: %w", err))
	}
	for _, spec := range c.Rails {
		if spec == Mem {
			errs = append(errs, fmt.Errorf("transfer: ServerConfig.Rails: %s reaches this process only: run the client alone", Mem))
		}
	}
	if c.Segment < 0 || c.Segment > maxSize {
		errs = append(errs, fmt.Errorf("transfer: ServerConfig.Segment is %d: use up to %s, or 0 for the default", c.Segment, FormatSize(maxSize)))
	}
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			errs = append(errs, fmt.Errorf("transfer: ServerConfig.Listen is %q: write host:port, or :%s", c.Listen, DefaultPort))
		}
	}
	return errors.Join(errs...)
}

// A Server is a target that listens.
type Server struct {
	cfg    ServerConfig
	engine *transport.Engine
	lis    net.Listener
}

// Listen opens the rails and the control connection's port. The caller calls Serve
// or Close.
func Listen(cfg ServerConfig) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Listen == "" {
		cfg.Listen = ":" + DefaultPort
	}
	if cfg.Location == "" {
		cfg.Location = topology.Any
	}
	if cfg.Segment == 0 {
		cfg.Segment = defaultSegment()
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	opened, err := rails.OpenAll(cfg.Rails, rails.Options{Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	engine, err := newEngine(cfg.Matrix, transport.Config{Rails: opened, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	lis, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control connection: %w", err), engine.Close())
	}
	return &Server{cfg: cfg, engine: engine, lis: lis}, nil
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
// or nil after the one client of Once. The server is closed.
func (s *Server) Serve(ctx context.Context) (err error) {
	defer func() {
		_ = s.lis.Close()
		err = errors.Join(err, s.engine.Close())
	}()
	defer context.AfterFunc(ctx, func() { _ = s.lis.Close() })()
	for {
		conn, err := s.lis.Accept()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("control connection: %w", err)
		}
		from := conn.RemoteAddr().String()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		t := &target{engine: s.engine, most: s.cfg.Segment, location: s.cfg.Location}
		began, err := t.serve(conn)
		stop()
		_ = conn.Close()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			fmt.Fprintf(s.cfg.Log, "client %s: %v\n", from, err)
		default:
			fmt.Fprintf(s.cfg.Log, "client %s: %d points\n", from, t.points)
		}
		if s.cfg.Once && began {
			return nil
		}
	}
}

// A target serves one client.
type target struct {
	engine   *transport.Engine
	most     int64
	location string // of its memory
	shared   bool   // the initiator is in this process: its CPU time is there

	mem    []byte
	seed   uint64 // of what the memory had at first
	seg    *transport.Segment
	plan   *plan
	points int
}

// serve answers one control connection until it ends; began says that it was a
// client's. The memory is gone when it returns.
func (t *target) serve(conn net.Conn) (began bool, err error) {
	l := newLines(conn)
	_ = conn.SetReadDeadline(time.Now().Add(helloTimeout))
	m, err := l.receive()
	switch {
	case err != nil:
		if errors.Is(err, errNoLine) {
			_ = l.send(&message{Type: "error", Error: "this is kvbench transfer --server, and that was " + err.Error()})
		}
		return false, err
	case m.Type != "hello" || m.Protocol != protocol:
		err := fmt.Errorf("this target speaks version %d of the protocol and the client %q version %d: use the same kvbench at both ends", protocol, m.Type, m.Protocol)
		_ = l.send(&message{Type: "error", Protocol: protocol, Error: err.Error()})
		return false, err
	}
	_ = conn.SetReadDeadline(time.Time{})
	defer func() { err = errors.Join(err, t.free()) }()
	for {
		answer, err := t.answer(m)
		if err != nil {
			answer = &message{Type: "error", Error: err.Error()}
		}
		if e := l.send(answer); e != nil || err != nil {
			return true, errors.Join(err, e)
		}
		switch m, err = l.receive(); {
		case errors.Is(err, io.EOF):
			return true, nil
		case err != nil:
			return true, err
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
		if t.plan.Check && t.plan.Op == transport.Read {
			eachThread(t.plan.Threads, func(i int) { t.plan.source(t.mem, i) })
		}
		return &message{Type: "ready"}, nil
	case m.Type == "mark":
		if t.shared {
			return &message{Type: "usage"}, nil
		}
		return &message{Type: "usage", CPU: cpuSeconds()}, nil
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
	if t.mem, err = kvcache.MapMemory(int(m.Segment)); err != nil {
		return nil, fmt.Errorf("mapping %d bytes: %w", m.Segment, err)
	}
	if err := topology.Place(t.mem, t.location); err != nil {
		return nil, err
	}
	t.seed = m.Seed
	warm(t.mem, t.seed^1)
	if t.seg, err = t.engine.Register("target", t.mem, t.location); err != nil {
		return nil, err
	}
	info, machine := t.seg.Info(), bench.DescribeMachine()
	answer := &message{Type: "welcome", Protocol: protocol, Info: &info, Machine: &machine}
	for _, r := range info.Rails {
		answer.Rails = append(answer.Rails, r.Rail+" at "+r.Addr)
	}
	return answer, nil
}

func (t *target) free() error {
	var errs []error
	if t.seg != nil {
		errs = append(errs, t.seg.Close())
	}
	if t.mem != nil {
		errs = append(errs, kvcache.UnmapMemory(t.mem))
	}
	return errors.Join(errs...)
}

// check compares what landed, all threads at once.
func (p *plan) check(mem []byte, landed []landing) (verdict, error) {
	verdicts, errs := make([]verdict, len(landed)), make([]error, len(landed))
	eachThread(len(landed), func(i int) { verdicts[i], errs[i] = p.destination(mem, i, landed[i]) })
	var sum verdict
	for _, v := range verdicts {
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
