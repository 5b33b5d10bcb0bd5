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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"kvferry/internal/config"
	"kvferry/internal/proc"
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
	*proc.Proc
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
		d.Node.Ledger = "/dev/fd/4" // the first of proc.Cmd's Files, behind the hello
	}
	_, err := c.spawn(ctx, name, "node", d)
	return err
}

func (c *Cluster) spawnProxy(ctx context.Context) (hello, error) {
	return c.spawn(ctx, "proxy", "proxy", &c.spec)
}

// Close stops every daemon, nodes first, so that they can still deregister, and returns what
// did not end as it should: a daemon that had crashed, or had to be killed. One after
// another, each has StopTimeout. Process and Processes go on to answer.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range slices.Backward(c.Processes()) {
		if err := p.Stop(); err != nil {
			errs = append(errs, fmt.Errorf("cluster: %s %w", p.Name, p.WithLog(hint(err))))
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
// hello. If that does not come, no process is left.
func (c *Cluster) spawn(ctx context.Context, name, command string, d *Spec) (h hello, err error) {
	exe, err := os.Executable()
	if err != nil {
		return h, fmt.Errorf("cluster: %w", err)
	}
	as := *d
	if c.profile != "" {
		as.Profile = c.profile
	}
	cmd := proc.Cmd{
		Args: append([]string{exe, command}, Knobs.For(commands[command]).Args(&as)...), Env: append(os.Environ(), childEnv+"=1"), Hello: true, Log: c.spec.Log,
		Stop: syscall.SIGTERM, Grace: c.spec.StopTimeout,
	}
	if c.ledger != nil {
		cmd.Files = []*os.File{c.ledger}
	}
	p, err := proc.Start(ctx, cmd)
	if err != nil {
		return h, fmt.Errorf("cluster: starting %s: %w", name, hint(err))
	}
	if err = json.Unmarshal([]byte(p.Hello), &h); h.Error != nil {
		err = h.Error.Err()
	}
	if err != nil {
		p.Kill()
		return h, fmt.Errorf("cluster: starting %s: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs = append(c.procs, &Process{name, p})
	return h, nil
}

// hint adds to the error of a daemon that was killed what takes less memory.
func hint(err error) error {
	if errors.Is(err, proc.ErrKilled) {
		return fmt.Errorf("%w: fewer KV blocks (--kv-blocks) take less of it", err)
	}
	return err
}

// daemonLog has the daemons write one line at a time.
type daemonLog struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *daemonLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(line)
}

// Processes are all daemons started so far, in order, those that have ended too.
func (c *Cluster) Processes() []*Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.procs)
}
