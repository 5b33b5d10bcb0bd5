package rail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
	"kvferry/transport/transporttest"
)

// targetEnv carries the ServerConfig of a child, as JSON.
const targetEnv = "KVFERRY_TRANSFER_TARGET"

// orphaned is the exit status of a child whose parent has gone, or lets it go.
const orphaned = 3

// listening is the line a child prints once it listens, or cannot.
type listening struct {
	Addr  string
	Error config.Report
}

// Child serves as a target and exits if this process was started as one by Run;
// otherwise it returns at once. A program that calls Run calls it first thing in
// main. The child's standard input is a pipe whose other end only Run's process
// holds: it ends with that process, kill -9 included.
func Child() {
	spec, ok := os.LookupEnv(targetEnv)
	if !ok {
		return
	}
	os.Unsetenv(targetEnv)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
		os.Exit(orphaned)
	}()
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
	if e := json.NewEncoder(os.Stdout).Encode(report); e != nil || err != nil {
		os.Exit(1)
	}
	if err := s.Serve(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// link is the way to a target: the initiator's rails and the control connection.
type link struct {
	open  func(count int) ([]transport.Rail, error) // the first of the rails; the caller's to close
	peer  *peer
	where string // of the target, for the report
	close func() error
}

// connect reaches the target that the configuration means.
func connect(ctx context.Context, cfg *Config) (*link, error) {
	if cfg.Rails[0] == Mem {
		return connectMemory(len(cfg.Rails), cfg.Segment)
	}
	l := &link{close: func() error { return nil }}
	l.open = func(n int) ([]transport.Rail, error) {
		return rails.OpenAll(cfg.Rails[:n], rails.Options{Logger: cfg.Logger})
	}
	addr := cfg.Server
	var err error
	if addr == "" {
		l.where = "a child process of this machine"
		addr, l.close, err = startChild(ctx, ServerConfig{Rails: cfg.Rails, Listen: "127.0.0.1:0", Segment: cfg.Segment, Location: cfg.Location, Matrix: cfg.Matrix, Once: true})
	} else {
		addr = serverAddress(addr)
		l.where = addr
	}
	var conn net.Conn
	if err == nil {
		d := net.Dialer{Timeout: cfg.Timeout}
		if conn, err = d.DialContext(ctx, "tcp", addr); err != nil && cfg.Server != "" {
			err = fmt.Errorf("no target at %s: start one there with kvferry rail bench --server: %w", addr, err)
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	l.peer = newPeer("the target at "+addr, conn)
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
	l := &link{peer: newPeer("the target", here), where: "this process"}
	made := 0 // a name is taken for good
	l.open = func(n int) (ours []transport.Rail, err error) {
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

// startChild starts this program again as a target. stop ends it, and returns what
// it had to say if it failed.
func startChild(ctx context.Context, cfg ServerConfig) (addr string, stop func() error, err error) {
	none := func() error { return nil }
	spec, err := json.Marshal(cfg)
	if err != nil {
		return "", none, err
	}
	exe, err := os.Executable()
	if err != nil {
		return "", none, fmt.Errorf("the target's process: %w", err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), targetEnv+"="+string(spec))
	var said bytes.Buffer
	cmd.Stderr = &said
	// A Ctrl-C at the terminal is the parent's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := cmd.StdinPipe()
	if err != nil {
		return "", none, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", none, err
	}
	kills := kvcache.OutOfMemory()
	if err := cmd.Start(); err != nil {
		return "", none, fmt.Errorf("the target's process: %w", err)
	}
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			_ = life.Close()
			kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
			e := cmd.Wait()
			status, ended := cmd.ProcessState.Sys().(syscall.WaitStatus)
			switch {
			case !kill.Stop(): // it had to be
			case ended && status.Signaled() && status.Signal() == syscall.SIGKILL:
				err = config.NewFault("Segment", config.FormatSize(cfg.Segment), "the target's process was killed: %s: lower it", kvcache.KilledFor(kills))
			case e != nil && cmd.ProcessState.ExitCode() != orphaned && said.Len() > 0:
				err = fmt.Errorf("the target's process: %s", strings.TrimSpace(said.String()))
			}
		})
		return err
	}
	type answer struct {
		listening
		err error
	}
	got := make(chan answer, 1)
	go func() {
		var a answer
		a.err = json.NewDecoder(out).Decode(&a.listening)
		got <- a
	}()
	select {
	case a := <-got:
		switch {
		case a.err != nil:
			err = fmt.Errorf("the target's process did not start: %w", a.err)
		case a.Error.Err() != nil:
			err = fmt.Errorf("the target's process: %w", a.Error.Err())
		default:
			return a.Addr, stop, nil
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	return "", none, errors.Join(err, stop())
}
