// Package node is a prefill, decode or non-disaggregated node as a value: a command makes
// a configuration of its flags and calls Run, a test runs several in one process.
//
// The control plane is gRPC (package proto). A node registers with the proxy and renews a
// lease; the proxy opens one Serve stream to it, over which every request's legs come in
// and every iteration's tokens go out, one message an iteration. KV bytes never pass
// through there: nodes exchange them over package transport, and tell each other over
// Handoff streams when.
//
// One goroutine, the worker's loop, owns the node's state: the scheduler and the hand-offs
// of package connector, which say what is to be done, and the KV pool. Streams, transfers
// (package kvtransfer) and the executor hand it events. Which scheduler and which executor
// they are, only the configuration knows. Durations are time.Duration on the node's monotonic
// clock; on the wire they are microseconds, deadlines milliseconds.
package node

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	grpckeepalive "google.golang.org/grpc/keepalive"

	"kvferry/connector"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/kvtransfer"
	"kvferry/proto"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// leaveGrace is how long the proxy and other nodes may take to hang up on a node
// that has drained and deregistered. They do at once, unless the proxy follows
// requests of this node's that another one has yet to end.
const leaveGrace = time.Second

// cancelGrace is how long a connection may stand still under the transfer of a
// request that was canceled. Nobody waits for the blocks of a client that has left,
// and the connection carries everybody's: breaking it sends up to 64 MiB again.
const cancelGrace = time.Second

// A Node is a prefill, decode or non-disaggregated daemon as a value.
type Node struct {
	cfg  Config
	w    *worker
	lis  net.Listener
	grpc *grpc.Server
	kv   *kvtransfer.Agent
	slab *kvcache.Slab
	free func() error // gives the slab's memory back; nil if there is none
	once sync.Once

	reach      []string      // of each rail: see rails.Reach
	leaveGrace time.Duration // the constant; more in tests, on busy machines
}

// New builds a node and binds its addresses; it serves nothing before Run, nor has it
// memory for the KV pool. The caller calls Run or Close.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, leaveGrace: leaveGrace}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	prof := cfg.Profile
	if left, ok := kvcache.Available(); ok && int64(cfg.KVBlocks) > left/int64(prof.KVGeometry.SlotBytes()) {
		cfg.Logger.Warn("the KV pool is larger than the memory that is left here: under load the kernel may end this process; --kv-blocks makes it smaller",
			"node", cfg.ID, "kv_blocks", cfg.KVBlocks, "fit", left/int64(prof.KVGeometry.SlotBytes()))
	}
	pool := kvcache.NewPool(cfg.KVBlocks, prof.KVGeometry.BlockTokens, cfg.PrefixCaching)
	tiers := cfg.Tiers.New(prof.KVGeometry)
	sched, err := cfg.scheduler(pool, tiers)
	if err != nil {
		return nil, err
	}
	var secret [32]byte
	_, _ = crand.Read(secret[:]) // it never fails
	core, err := connector.NewCore(connector.Config{
		Scheduler: sched, Pool: pool, Profile: prof, Secret: secret,
		Transfers: rand.Uint64() >> 16, // 2^48 is enough to be far from a predecessor's
	})
	if err != nil {
		return nil, err
	}
	var bad config.Faults
	size, err := kvcache.SlabBytes(prof.KVGeometry, cfg.KVBlocks)
	if err != nil {
		bad.Add("KVBlocks", cfg.KVBlocks, "%w", err)
		return nil, bad.Err("node.Config")
	}
	mem, free, err := cfg.Allocate(size)
	if err != nil {
		bad.Add("KVBlocks", cfg.KVBlocks, "memory for the KV pool, %d bytes: %w", size, err)
		return nil, bad.Err("node.Config")
	}
	n.free = free
	if n.slab, err = kvcache.NewSlab(prof.KVGeometry, mem); err != nil {
		return nil, err
	}
	if err := topology.Bind(mem, cfg.KVLocation); err != nil {
		bad.Check("KVLocation", err)
		return nil, bad.Err("node.Config")
	}
	w := &worker{
		cfg: cfg, log: cfg.Logger.With("node", cfg.ID), clk: cfg.Clock, core: core, pool: pool, tiers: tiers, instance: rand.Uint64(),
		steps: make(chan launch, 1), notify: make(chan struct{}, 1),
		live: make(map[uint64]*live), sessions: make(map[*session]struct{}),
	}
	n.w = w
	if w.checks, err = parseKVChecks(cfg.KVChecks); err != nil {
		return nil, err
	}
	if w.slab = n.slab; w.checks.landing {
		n.slab.KeepDigests()
	}
	if w.timer, err = cfg.Clock.NewTimer(); err != nil {
		return nil, err
	}
	if tiers != nil {
		if w.bus, err = pacing.NewBus(cfg.Tiers.PCIe*1e9, cfg.Tiers.Disk*1e9, cfg.Clock); err != nil {
			return nil, err
		}
	}
	exec, err := cfg.executor(n.slab)
	if err != nil {
		return nil, fmt.Errorf("node %s: executor: %w", cfg.ID, err)
	}
	w.exec = exec
	if err = n.connect(); err != nil {
		return nil, err
	}
	return n, nil
}

// connect opens the rails and the gRPC port.
func (n *Node) connect() error {
	opened, err := rails.OpenAll(n.cfg.Rails, rails.Options{Logger: n.w.log})
	if err != nil {
		return err
	}
	rank, err := rails.Ranks(opened, n.cfg.Matrix, n.w.log)
	if err != nil {
		for _, r := range opened {
			r.Close()
		}
		return fmt.Errorf("node %s: %w", n.cfg.ID, &config.Fault{Field: "Matrix", Err: err})
	}
	for _, r := range opened {
		n.reach = append(n.reach, rails.Reach(r))
	}
	if n.cfg.decorate != nil {
		for i := range opened {
			opened[i] = n.cfg.decorate(opened[i])
		}
	}
	n.kv, err = kvtransfer.New(kvtransfer.Config{
		Name: n.cfg.ID, Slab: n.slab, Location: n.cfg.KVLocation, Timeout: n.cfg.TransferTimeout, UnderWay: n.cfg.underWay,
		Release: func(d kvtransfer.Descriptor) { n.w.peer.release(d) }, Logger: n.w.log,
		Transport: transport.Config{
			Rails: opened, Clock: n.cfg.Clock, Link: n.w.bus.Join(n.cfg.Link), Ledger: n.cfg.Ledger, Select: n.cfg.Select, Rank: rank, Logger: n.w.log, CancelGrace: cancelGrace,
		},
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", n.cfg.ID, err)
	}
	n.w.kv = n.kv
	if n.lis, err = config.Listen("GRPCAddr", n.cfg.GRPCAddr); err != nil {
		return err
	}
	n.w.peer = newPeers(n.w)
	n.w.peer.addr = n.GRPCAddr()
	prof := n.cfg.Profile
	submit := proto.SubmitSize(uint32(prof.MaxModelLen), uint32(prof.KVGeometry.BlockTokens))
	n.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(submit), proto.ServerKeepalive(), grpc.WaitForHandlers(true))
	proto.RegisterWorkerServer(n.grpc, n.w)
	proto.RegisterPeerServer(n.grpc, n.w.peer)
	return nil
}

// GRPCAddr is the address the node listens at.
func (n *Node) GRPCAddr() string { return n.lis.Addr().String() }

// Run serves until ctx ends, then drains: it takes no new requests, lets running
// ones end for DrainTimeout at most, and returns nil. It returns an error if the
// node could not go on.
func (n *Node) Run(ctx context.Context) error {
	defer n.Close()
	if !n.warm(ctx) {
		n.w.log.Info("stopped")
		return nil
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	n.w.peer.ctx = run
	g, run := errgroup.WithContext(run)
	ignore := func(err error) error {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	g.Go(func() error { return ignore(n.w.loop(run)) })
	g.Go(func() error { return ignore(n.w.execute(run)) })
	if bus := n.w.bus; bus != nil {
		g.Go(func() error { bus.Run(run.Done()); return nil })
	}
	g.Go(func() error {
		if err := n.grpc.Serve(n.lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("node %s: gRPC: %w", n.cfg.ID, err)
		}
		return nil
	})
	held, leave := context.WithCancel(run)
	defer leave()
	deregistered := make(chan struct{})
	g.Go(func() error {
		defer close(deregistered)
		return ignore(n.lease().keep(held))
	})
	n.w.log.Info("serving", "role", proto.RoleName(n.cfg.Role), "grpc", n.GRPCAddr(), "profile", n.cfg.Profile.Name, "scheduler", n.cfg.schedulerName(), "kv_blocks", n.cfg.KVBlocks, "link", linkName(n.cfg.Link))

	select {
	case <-ctx.Done():
		n.w.log.Info("draining", "timeout", max(n.cfg.DrainTimeout, 0))
		idle := n.w.startDrain()
		grace := n.leaveGrace
		select {
		case <-idle:
		case <-run.Done():
		case <-time.After(n.cfg.DrainTimeout):
			n.w.log.Warn("drain timed out, ending what still runs", "timeout", max(n.cfg.DrainTimeout, 0))
			grace = 0
		}
		// The proxy hangs up once it has read the last word of every request; the
		// tokens that are on their way to it would be lost if this node did.
		leave()
		<-deregistered
		waiting, cancel := context.WithTimeout(run, grace)
		for _, left := range []<-chan struct{}{n.w.sessionsLeft(), n.w.peer.leave()} {
			select {
			case <-left:
			case <-waiting.Done():
			}
		}
		cancel()
	case <-run.Done():
	}
	stop()
	n.grpc.Stop()
	err := g.Wait()
	n.w.peer.wg.Wait()
	n.w.copies.Wait()
	if err == nil {
		n.w.log.Info("stopped")
	}
	return err
}

// warm takes memory for the KV pool, and reports whether it got to the end of that: it
// may take seconds.
func (n *Node) warm(ctx context.Context) bool {
	if n.cfg.Role == proto.Role_ROLE_NONDISAGG || n.cfg.WarmBytes <= 0 {
		return true
	}
	n.w.log.Info("taking memory for the KV pool", "mib", n.cfg.WarmBytes>>20)
	const stretch = 64 << 20
	for done := 0; done < n.cfg.WarmBytes; done += stretch {
		if ctx.Err() != nil {
			return false
		}
		n.slab.Touch(done, min(done+stretch, n.cfg.WarmBytes))
	}
	return true
}

// Close releases what New took. Run calls it.
func (n *Node) Close() {
	n.once.Do(func() {
		if n.grpc != nil {
			n.grpc.Stop()
		}
		if n.lis != nil {
			n.lis.Close()
		}
		if n.kv != nil {
			if err := n.kv.Close(); err != nil {
				n.w.log.Warn("closing the transfer engine", "err", err)
			}
		}
		if n.w != nil && n.w.timer != nil {
			n.w.timer.Close()
		}
		if n.w != nil && n.w.bus != nil {
			n.w.bus.Close()
		}
		if n.w != nil && n.w.exec != nil {
			if err := n.w.exec.Close(); err != nil {
				n.w.log.Warn("closing the executor", "err", err)
			}
		}
		if n.free != nil {
			if err := n.free(); err != nil {
				n.cfg.Logger.Warn("giving the KV pool's memory back", "node", n.cfg.ID, "err", err)
			}
		}
	})
}

func linkName(l *pacing.Link) string {
	if l == nil {
		return "native"
	}
	return l.String()
}

// dialOptions are those of every connection a node makes. A process that is not
// there yet is tried again after 0.1 to 1 s (gRPC's default is 1 to 120 s). That
// the other end's machine is gone is found out within 13 s; a dead process is
// noticed at once.
func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(proto.MessageSize)),
		grpc.WithKeepaliveParams(grpckeepalive.ClientParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
}
