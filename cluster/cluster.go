// Package cluster runs a kvferry cluster on this machine as child processes: a
// proxy and its nodes, each the same binary executed again, so that KV bytes
// really cross process boundaries and the crash of one is a real crash.
//
// A [Spec] describes a cluster, and [Knobs] are its settings: flags, records, sweeps and the
// command lines of children come from that table.
//
// A program that uses it calls [Child] first thing in main: in a child that runs
// the daemon and never returns. The child's command line is that of kvferry proxy or kvferry
// node, as ps shows it. Its standard input is a pipe whose other end only the
// parent holds, so that the kernel tells it when the parent is gone, kill -9
// included, and it ends.
//
// Whoever starts a cluster owns its processes, until [Cluster.Close]. A process has one
// goroutine here, which reads its output, waits for its end and closes Done. Addresses are
// on the loopback interface, with ports that the kernel chooses.
package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/proxy"
)

// A Cluster is a proxy and its nodes, as child processes, from Start to Close. Its methods
// may be called from any goroutine.
type Cluster struct {
	spec Spec   // with defaults
	http string // host:port of the proxy, as grpc is
	grpc string
	// ledger is by which the nodes share their modelled NICs: a file without a name, that
	// each has open. Nil without a modelled link.
	ledger  *os.File
	profile string // file of a profile that has no name, until Close; empty if there is none

	mu    sync.Mutex
	procs []*Process // all that were ever started, in order
}

// A Process is one daemon of a cluster.
type Process struct {
	Name string // "proxy", "prefill-0", ...
	cmd  *exec.Cmd
	life io.Closer // the child ends when this closes

	mu      sync.Mutex
	stopped bool          // by us: its end is no fault
	done    chan struct{} // closed after err is set
	err     error         // why it ended, if that is a fault
}

// Start starts a cluster. It returns when proxy and nodes listen; the proxy's /health
// answers 200 once the nodes have registered. ctx bounds the start only: the cluster runs
// until Close. If Start fails, no process of it is left.
func Start(ctx context.Context, spec Spec) (*Cluster, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	c, err := newCluster(spec)
	if err != nil {
		return nil, err
	}
	hello, err := c.spawnProxy(ctx)
	if err != nil {
		_ = c.Close() // why the proxy ended is in err
		return nil, err
	}
	c.http, c.grpc = hello.HTTP, hello.GRPC
	type start struct{ role, name string }
	var starts []start
	for _, kind := range []struct {
		role string
		n    int
	}{{"nondisagg", spec.Nondisagg}, {"prefill", spec.Prefill}, {"decode", spec.Decode}} {
		for i := range kind.n {
			starts = append(starts, start{kind.role, fmt.Sprintf("%s-%d", kind.role, i)})
		}
	}
	// Together: each warms its KV pool first, which takes a core some seconds.
	errs := make([]error, len(starts))
	var wg sync.WaitGroup
	for i, s := range starts {
		wg.Go(func() { errs[i] = c.AddNode(ctx, s.role, s.name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// newCluster returns a cluster none of whose daemons has been started.
func newCluster(spec Spec) (*Cluster, error) {
	config.Default(&spec.Log, io.Discard)
	spec.Log = &daemonLog{w: spec.Log}
	config.Default(&spec.StopTimeout, 5*time.Second)
	config.Default(&spec.Proxy.HTTPAddr, "127.0.0.1:0")
	config.Default(&spec.Proxy.GRPCAddr, "127.0.0.1:0")
	if spec.Proxy.Mode == "" {
		switch {
		case spec.Nondisagg == 0:
			spec.Proxy.Mode = proxy.ModeDisagg
		case spec.Prefill == 0:
			spec.Proxy.Mode = proxy.ModeNondisagg
		}
	}
	c := &Cluster{spec: spec}
	if err := c.openLedger(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return c, c.writeProfile()
}

// writeProfile makes the file that the daemons read the profile from, if it is not one of a name.
func (c *Cluster) writeProfile() error {
	if c.spec.Costs == nil {
		return nil
	}
	f, err := os.CreateTemp("", "kvferry-profile-*.json")
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	c.profile = f.Name()
	return errors.Join(json.NewEncoder(f).Encode(c.spec.Costs), f.Close())
}

// openLedger makes the file by which the nodes share their modelled NICs, if they have such.
func (c *Cluster) openLedger() (err error) {
	if link, err := c.spec.PacedLink(); err != nil || link == nil || c.spec.Prefill == 0 {
		return err
	}
	if c.ledger, err = os.CreateTemp("", "kvferry-ledger-"); err != nil {
		return err
	}
	return os.Remove(c.ledger.Name()) // so that nothing is left of it, whatever happens
}

// URL is the proxy's, "http://127.0.0.1:12345".
func (c *Cluster) URL() string { return "http://" + c.http }

// Process returns the daemon of that name, or nil. A restarted node's latest
// process is returned.
func (c *Cluster) Process(name string) *Process {
	for _, p := range slices.Backward(c.Processes()) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// AddNode starts one more node, of role prefill, decode or nondisagg, and returns when it
// listens: it registers with the proxy after that. The name of one that has ended may be used
// again.
func (c *Cluster) AddNode(ctx context.Context, role, name string) error {
	roles := map[string]proto.Role{"prefill": proto.Role_ROLE_PREFILL, "decode": proto.Role_ROLE_DECODE, "nondisagg": proto.Role_ROLE_NONDISAGG}
	d := c.spec.daemon(roles[role], name, c.grpc)
	if cfg, err := d.NodeConfig(); err == nil && c.ledger != nil && cfg.Link != nil {
		d.Node.Ledger = "/dev/fd/3" // the first of exec.Cmd's ExtraFiles
	}
	_, err := c.spawn(ctx, name, "node", d)
	return err
}

func (c *Cluster) spawnProxy(ctx context.Context) (*hello, error) {
	return c.spawn(ctx, "proxy", "proxy", &c.spec)
}

// Close stops every daemon, nodes first, so that they can still deregister, and returns what
// did not end as it should: a daemon that had crashed, or had to be killed. One after
// another, each has StopTimeout. Process and Processes go on to answer.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range slices.Backward(c.Processes()) {
		if err := p.stop(c.spec.StopTimeout); err != nil {
			errs = append(errs, err)
		}
	}
	if c.ledger != nil {
		_ = c.ledger.Close() // a second time is no fault
	}
	if c.profile != "" {
		_ = os.Remove(c.profile) // likewise
	}
	return errors.Join(errs...)
}

// spawn starts the daemon that d describes, of the command proxy or node, and waits for its
// hello. If that does not come, the process is killed and stays among procs, where Close finds it
// ended.
func (c *Cluster) spawn(ctx context.Context, name, command string, d *Spec) (*hello, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	as := *d
	if c.profile != "" {
		as.Profile = c.profile
	}
	cmd := exec.Command(exe, append([]string{command}, Knobs.For(commands[command]).Args(&as)...)...)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.Stderr = c.spec.Log
	if c.ledger != nil {
		cmd.ExtraFiles = []*os.File{c.ledger}
	}
	// A Ctrl-C at the terminal is the parent's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cluster: starting %s: %w", name, err)
	}
	p := &Process{Name: name, cmd: cmd, life: life, done: make(chan struct{})}
	c.mu.Lock()
	c.procs = append(c.procs, p)
	c.mu.Unlock()

	type answer struct {
		h   hello
		err error
	}
	ready := make(chan answer, 1)  // has room: nobody may be there to take it
	kills := kvcache.OutOfMemory() // so far, to compare with at the end
	go func() {
		var a answer
		line, err := bufio.NewReader(out).ReadBytes('\n')
		said := err == nil
		if said {
			if a.err = json.Unmarshal(line, &a.h); a.h.Error != nil {
				a.err = a.h.Error.Err()
			}
			ready <- a
		}
		_, _ = io.Copy(io.Discard, out) // until the child ends; Wait may come after that only
		p.ended(cmd.Wait(), kills)
		if !said {
			p.mu.Lock()
			a.err = errors.Join(p.err, err)
			p.mu.Unlock()
			ready <- a
		}
		close(p.done)
	}()
	select {
	case a := <-ready:
		if a.err != nil {
			_ = p.Kill()
			return nil, fmt.Errorf("cluster: starting %s: %w", name, a.err)
		}
		return &a.h, nil
	case <-ctx.Done():
		_ = p.Kill()
		return nil, context.Cause(ctx)
	}
}

// ended notes why the process has ended, if nobody here has ended it: err is of its Wait,
// and kills what [kvcache.OutOfMemory] was before it started.
func (p *Process) ended(err error, kills int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return
	}
	if err == nil {
		err = errors.New(p.cmd.ProcessState.String())
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signal() == syscall.SIGKILL {
		err = fmt.Errorf("%w: %s: fewer KV blocks (--kv-blocks) take less of it", err, kvcache.KilledFor(kills))
	}
	p.err = fmt.Errorf("cluster: %s ended by itself: %w", p.Name, err)
}

// Pid is the process's, also after its end, when another may have it.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and its output has been read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process as kill -9 does, and waits for its end. It is no fault to Close, nor
// an error if the process has ended before.
func (p *Process) Kill() error {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	err := p.cmd.Process.Kill()
	<-p.done
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Terminate asks the process to drain and end, and does not wait for that. From here on its
// end is no fault.
func (p *Process) Terminate() error {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	return p.cmd.Process.Signal(syscall.SIGTERM)
}

// stop ends the process, if it runs. The error says that it had ended by itself, or had to be
// killed.
func (p *Process) stop(timeout time.Duration) error {
	select {
	case <-p.done:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err
	default:
	}
	_ = p.Terminate()
	defer p.life.Close()
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
		_ = p.Kill()
		return fmt.Errorf("cluster: %s did not end within %v and was killed", p.Name, timeout)
	}
}

// daemonLog keeps the daemons' lines whole. It never fails: after an error the pipe
// from the daemon would be closed, and its next line would end it.
type daemonLog struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *daemonLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(b)
	return len(b), nil
}

// Processes are all daemons started so far, in order, those that have ended too.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.procs)
}
