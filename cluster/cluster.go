// Package cluster runs a kvferry cluster on this machine as child processes: a
// proxy and its nodes, each the same binary executed again, so that KV bytes
// really cross process boundaries and the crash of one is a real crash.
//
// A program that uses it calls [Child] first thing in main: in a child that runs
// the daemon and never returns. The child's part in the cluster travels in an
// environment variable. Its standard input is a pipe whose other end only the
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
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"kvferry/engine"
	"kvferry/engine/eos"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/node"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy"
)

// Config describes a cluster. Either Nondisagg or both Prefill and Decode must
// be above 0.
type Config struct {
	Prefill, Decode, Nondisagg int    // nodes
	Chunked                    bool   // of non-disaggregated nodes
	Handoff                    string // one of handoff.Names; the proxy's default if empty
	Placement                  string
	ConditionalDisaggregation  int // see --conditional-disaggregation of the proxy
	Migration                  placement.MigrationConfig
	Profile                    string   // a shipped one's name, or a JSON file; the shipped A10 if empty
	Link                       string   // see --link of the daemons; native if empty. Modelled NICs are shared as in virtual time
	DecodeLinks                []string // of decode nodes instead, in turn
	Rails                      []string // see --rail of the daemons; TCP over loopback if empty
	KVBlocks                   int      // of each node; what the profile's GPU holds if 0
	WarmMiB                    int      // see --kv-warm-mib of the daemons; none if 0
	PrefixCaching              bool
	Tiers                      kvcache.TierConfig // of each node
	EOS                        eos.Lengths        // see --eos of the proxy; its default if zero
	LoRAs                      []proxy.LoRA       // see --lora-modules of the proxy
	TokensFromKV               bool               // see --tokens-from-kv of the daemons
	KVChecks                   string             // see --kv-checks of the daemons; their default if empty
	RequestTimeout             time.Duration      // this and those below: the daemons' defaults if 0
	TransferTimeout            time.Duration
	LeaseTTL                   time.Duration // how long a silent node counts as there
	MaxQueue                   int           // requests that may wait; the proxy's default if 0
	OTLPTracesEndpoint         string        // see --otlp-traces-endpoint of the proxy; none if empty
	HTTP                       string        // host:port of the proxy; a free port of the loopback interface if empty

	// Log gets the daemons' standard error, from a goroutine for each of them, one Write
	// at a time. Default none. What it does not take is lost: a full disk must not end the
	// daemons.
	Log io.Writer `json:"-"`
	// LogLevel of the daemons. Default info.
	LogLevel string
	// StopTimeout is how long Close lets a daemon drain before it kills it.
	// Default 5 s.
	StopTimeout time.Duration
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	var bad config.Faults
	for _, n := range []struct {
		field string
		v     int
	}{{"Prefill", c.Prefill}, {"Decode", c.Decode}, {"Nondisagg", c.Nondisagg}, {"KVBlocks", c.KVBlocks}, {"WarmMiB", c.WarmMiB}} {
		bad.Refuse(n.v < 0, n.field, n.v, "use 0 or more")
	}
	if c.Nondisagg == 0 && (c.Prefill == 0 || c.Decode == 0) {
		bad.Add("Nondisagg", c.Nondisagg, "with %d prefill and %d decode nodes, nothing is served: use one of it, or one of each of the others", c.Prefill, c.Decode)
	}
	role := "nondisagg"
	if c.Prefill > 0 {
		role = "prefill"
	}
	bad.Check("EOS", c.EOS.Validate())
	n, err := c.node(role, role, "localhost:1")
	bad.Check("", err)
	for _, l := range c.DecodeLinks {
		_, err := node.ResolveLink(n.Profile, l)
		bad.Check("DecodeLinks", err)
	}
	if err == nil {
		bad.Check("", n.Validate())
	}
	if len(bad) == 0 {
		c.checkMemory(&bad, n)
	}
	return bad.Err("cluster.Config")
}

// node is the configuration of a node; an error is a [config.Invalid]. Parent and children
// both make it, the former to find faults before it starts anything.
func (c Config) node(role, name, registry string) (n node.Config, err error) {
	n = node.Config{
		ID: name, Proxy: registry, GRPCAddr: "127.0.0.1:0", Rails: c.Rails, KVBlocks: c.KVBlocks, WarmBytes: config.OrNone(c.WarmMiB << 20),
		Chunked: c.Chunked && role == "nondisagg", PrefixCaching: c.PrefixCaching, Tiers: c.Tiers, KVChecks: c.KVChecks, TokensFromKV: c.TokensFromKV, TransferTimeout: c.TransferTimeout,
		Role: map[string]proto.Role{
			"prefill": proto.Role_ROLE_PREFILL, "decode": proto.Role_ROLE_DECODE, "nondisagg": proto.Role_ROLE_NONDISAGG,
		}[role],
	}
	config.Default(&c.Profile, engine.DefaultProfile)
	var bad config.Faults
	if n.Profile, err = engine.LoadProfile(c.Profile); err != nil {
		bad.Check("Profile", err)
	} else if n.Link, err = node.ResolveLink(n.Profile, c.linkOf(role, name)); err != nil {
		bad.Check("Link", err)
	}
	return n, bad.Err("cluster.Config")
}

// linkOf is the link of a node.
func (c Config) linkOf(role, name string) string {
	_, number, _ := strings.Cut(name, "-")
	i, err := strconv.Atoi(number)
	if role != "decode" || err != nil || len(c.DecodeLinks) == 0 {
		return c.Link
	}
	return c.DecodeLinks[i%len(c.DecodeLinks)]
}

// LoRAs are adapters as the proxy is told of them.
func LoRAs(ranks engine.Ranks) (loras []proxy.LoRA) {
	for _, name := range slices.Sorted(maps.Keys(ranks)) {
		loras = append(loras, proxy.LoRA{Name: name, Path: strconv.Itoa(ranks[name])})
	}
	return loras
}

// checkMemory holds what all nodes touch before they serve to the memory that is left:
// each sees only its own.
func (c Config) checkMemory(bad *config.Faults, n node.Config) {
	nodes := int64(c.Prefill + c.Decode)
	if left, ok := kvcache.Available(); ok && nodes > 0 && c.warmed(n) > left>>20/nodes {
		bad.Add("WarmMiB", c.WarmMiB, "%d nodes have so many MiB of their pools in memory, and %d are left on this machine: use %d or less", nodes, left>>20, left>>20/nodes)
	}
}

// warmed is how many MiB of its pool a node has in memory before it serves: WarmMiB, or all.
func (c Config) warmed(n node.Config) int64 {
	pool := int64(n.Profile.Blocks())
	if c.KVBlocks > 0 {
		pool = int64(c.KVBlocks)
	}
	return min(int64(c.WarmMiB), pool*int64(n.Profile.KVGeometry.SlotBytes())>>20)
}

// FitWarm is WarmMiB, or less where this machine has not so much left for each node that moves
// KV: three quarters of what it has. The rest is for what they and their clients take besides.
func (c Config) FitWarm() int {
	n, err := c.node("prefill", "prefill", "localhost:1")
	left, ok := kvcache.Available()
	nodes := int64(c.Prefill + c.Decode)
	if err != nil || !ok || nodes == 0 {
		return c.WarmMiB
	}
	if room := left >> 20 / nodes * 3 / 4; c.warmed(n) > room {
		return int(room)
	}
	return c.WarmMiB
}

// A Cluster is a proxy and its nodes, as child processes, from Start to Close. Its methods
// may be called from any goroutine.
type Cluster struct {
	cfg  Config // with defaults
	http string // host:port of the proxy, as grpc is
	grpc string
	// ledger is by which the nodes share their modelled NICs: a file without a name, that
	// each has open. Nil without a modelled link.
	ledger *os.File

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
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Log, io.Discard)
	cfg.Log = &daemonLog{w: cfg.Log}
	if len(cfg.Rails) == 0 {
		cfg.Rails = []string{node.DefaultRail}
	}
	config.Default(&cfg.StopTimeout, 5*time.Second)
	c := &Cluster{cfg: cfg}
	if err := c.openLedger(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	hello, err := c.spawn(ctx, part{Name: "proxy", Role: "proxy"})
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
	}{{"nondisagg", cfg.Nondisagg}, {"prefill", cfg.Prefill}, {"decode", cfg.Decode}} {
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

// openLedger makes the file by which the nodes share their modelled NICs, if they have such.
func (c *Cluster) openLedger() (err error) {
	if n, err := c.cfg.node("prefill", "prefill", "localhost:1"); err != nil || n.Link == nil || c.cfg.Prefill == 0 {
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
	_, err := c.spawn(ctx, part{Name: name, Role: role})
	return err
}

// Close stops every daemon, nodes first, so that they can still deregister, and returns what
// did not end as it should: a daemon that had crashed, or had to be killed. One after
// another, each has StopTimeout. Process and Processes go on to answer.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range slices.Backward(c.Processes()) {
		if err := p.stop(c.cfg.StopTimeout); err != nil {
			errs = append(errs, err)
		}
	}
	if c.ledger != nil {
		_ = c.ledger.Close() // a second time is no fault
	}
	return errors.Join(errs...)
}

// spawn starts a part and waits for its hello. If that does not come, the process is killed
// and stays among procs, where Close finds it ended.
func (c *Cluster) spawn(ctx context.Context, pt part) (*hello, error) {
	pt.Config, pt.Registry, pt.Ledger = c.cfg, c.grpc, c.ledger != nil
	spec, err := json.Marshal(pt)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), partEnv+"="+string(spec))
	cmd.Stderr = c.cfg.Log
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
		return nil, fmt.Errorf("cluster: starting %s: %w", pt.Name, err)
	}
	p := &Process{Name: pt.Name, cmd: cmd, life: life, done: make(chan struct{})}
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
			return nil, fmt.Errorf("cluster: starting %s: %w", pt.Name, a.err)
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
		err = fmt.Errorf("%w: %s: fewer KV blocks (--num-gpu-blocks-override) take less of it", err, kvcache.KilledFor(kills))
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
