package rail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/proc"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
	"kvferry/transport/transporttest"
)

// targetEnv carries the ServerConfig of a child, as JSON.
const targetEnv = "KVFERRY_TRANSFER_TARGET"

// listening is the hello of a child that listens, or cannot.
type listening struct {
	Addr  string
	Error config.Report
}

// Child serves as a target and exits if this process was started as one by Run;
// otherwise it returns at once. A program that calls Run calls it first thing in
// main. The child ends with Run's process, kill -9 included.
func Child() {
	spec, ok := os.LookupEnv(targetEnv)
	if !ok {
		return
	}
	os.Unsetenv(targetEnv)
	proc.Tie()
	var cfg ServerConfig
	err := json.Unmarshal([]byte(spec), &cfg)
	var s *Server
	if err == nil {
		s, err = Listen(cfg)
	}
	report := listening{Error: config.NewReport(err)}
	if err == nil {
		report.Addr = s.Addr()
	}
	if e := proc.Announce(proc.HelloFD, report); e != nil || err != nil {
		os.Exit(1)
	}
	if err := s.Serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// link is the way to a target: the initiator's rails and the control connection.
type link struct {
	open  func(first, count int) ([]transport.Rail, error) // count rails from first on; the caller's to close
	peer  *peer
	where string // of the target, for the report
	close func() error
}

// targetCommand returns the command that starts a target of this kind of run. Any target serves any run.
func (c *Config) targetCommand() string {
	if c.steady {
		return "kvferry rail check --listen"
	}
	return "kvferry rail bench --server"
}

// connect reaches the target that the configuration means.
func connect(ctx context.Context, cfg *Config) (*link, error) {
	if cfg.Rails[0] == Mem {
		return connectMemory(len(cfg.Rails), cfg.Segment)
	}
	l := &link{close: func() error { return nil }}
	l.open = func(first, n int) ([]transport.Rail, error) {
		return rails.OpenAll(cfg.Rails[first:first+n], rails.Options{Logger: cfg.Logger})
	}
	addr := cfg.Server
	var err error
	if addr == "" {
		l.where = "a child process of this machine"
		var child *proc.Proc
		target := ServerConfig{Rails: cfg.Rails, Listen: "127.0.0.1:0", Segment: cfg.Segment, Location: cfg.Location, Matrix: cfg.Matrix, Once: true}
		child, addr, err = startChild(ctx, target)
		if err == nil {
			l.close = func() error {
				if err := child.Stop(); err != nil && child.Wait() != nil {
					return target.childFault(child.WithLog(err))
				}
				return nil // this process has ended it, or it has served its client
			}
		}
	} else {
		addr = serverAddress(addr)
		l.where = addr
	}
	var conn net.Conn
	if err == nil {
		d := net.Dialer{Timeout: cfg.Timeout}
		if conn, err = d.DialContext(ctx, "tcp", addr); err != nil && cfg.Server != "" {
			err = fmt.Errorf("no target at %s: start one there with %s: %w", addr, cfg.targetCommand(), err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.peer = newPeer("the target at "+addr, cfg.targetCommand(), conn)
	return l, nil
}

// connectMemory has the target in this process, over the rail in memory.
func connectMemory(n int, segment int64) (*link, error) {
	network := transporttest.NewNetwork()
	var theirs []transport.Rail
	for i := range n {
		theirs = append(theirs, network.Rail(fmt.Sprintf("target%d", i)))
	}
	engine, err := newEngine("", transport.Config{Rails: theirs})
	if err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	t := &target{engine: engine, allocate: transport.MapMemory, most: segment, location: topology.Any, shared: true}
	ended := make(chan error, 1)
	go func() {
		err := t.serve(there)
		_ = there.Close()
		ended <- err
	}()
	l := &link{peer: newPeer("the target", "", here), where: "this process"}
	made := 0 // a name is taken for good
	l.open = func(_, n int) (ours []transport.Rail, err error) {
		for range n {
			ours = append(ours, network.Rail(fmt.Sprintf("initiator%d", made)))
			made++
		}
		return ours, nil
	}
	l.close = func() error {
		// The error of a pipe that was closed in the middle is the initiator's own.
		<-ended
		return engine.Close()
	}
	return l, nil
}

// startChild starts this program again as a target, which is at addr.
func startChild(ctx context.Context, cfg ServerConfig) (p *proc.Proc, addr string, err error) {
	spec, err := json.Marshal(cfg)
	if err != nil {
		return nil, "", err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("the target's process: %w", err)
	}
	p, err = proc.Start(ctx, proc.Cmd{Args: []string{exe}, Env: append(os.Environ(), targetEnv+"="+string(spec)), Hello: true, Grace: 5 * time.Second})
	if err != nil {
		return nil, "", cfg.childFault(err)
	}
	var hello listening
	if err = json.Unmarshal([]byte(p.Hello), &hello); err == nil {
		err = hello.Error.Err()
	}
	if err != nil {
		p.Kill()
		return nil, "", cfg.childFault(err)
	}
	return p, hello.Addr, nil
}

// childFault is the error of a child that failed.
func (c ServerConfig) childFault(err error) error {
	err = fmt.Errorf("the target's process: %w", err)
	if errors.Is(err, proc.ErrKilled) {
		return config.NewFault("Segment", config.FormatSize(c.Segment), "lower it: %w", err)
	}
	return err
}
