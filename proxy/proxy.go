// Package proxy is what clients talk to: it serves OpenAI's HTTP API over the nodes of a
// cluster. A command makes a configuration of its flags and calls Run; a test
// runs one with scripted nodes.
//
// Which nodes there are, a membership says (package proxy/members): with the daemons, nodes
// that register over gRPC and renew a lease. The proxy opens one Serve stream to each
// (package proto), over which every request's legs go out and every iteration's tokens come
// back, one message an iteration. A node is usable while it is a member and its stream is
// open; when either ends, what it was working on is placed elsewhere. KV bytes never pass
// through here.
//
// A request belongs to the goroutine of its HTTP handler from beginning to end. Streams'
// receivers only append to its inbox, senders only empty a node's queue, so a slow client
// holds up nobody else. Durations are time.Duration on the proxy's monotonic clock; on the
// wire they are microseconds, deadlines milliseconds.
package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/proto"
	"kvferry/proxy/adapters"
	"kvferry/proxy/admission"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
	"kvferry/proxy/migration"
	"kvferry/proxy/openai"
	"kvferry/proxy/profile"
	"kvferry/proxy/tracing"
	"kvferry/proxy/upstream"
)

// Limits on what a connection may cost before it has asked for anything. They are chosen, and
// generous to a client on a slow network; the number of connections is what bounds memory.
const (
	headerTimeout  = 30 * time.Second
	idleTimeout    = 2 * time.Minute // between requests of a kept connection
	maxHeaderBytes = 64 << 10
)

// timeouts bound what a client may take with one request. Tests have shorter ones.
type timeouts struct {
	body   time.Duration // to send the body
	answer time.Duration // to read an answer that is no stream, or the next part of a long one
	grace  time.Duration // past the request's deadline, to read what was written
	idle   time.Duration // between requests of a kept connection, after a stream
	end    time.Duration // for requests that are ended, and then connections, when the proxy ends
}

var defaultTimeouts = timeouts{body: 30 * time.Second, answer: 10 * time.Second, grace: 5 * time.Second, idle: idleTimeout, end: time.Second}

// Proxy serves OpenAI's HTTP API over the nodes of a cluster.
//
// A request's life, in the order of the files: api_http.go takes it in, package openai
// checks it and makes tokens of it, queue.go takes it on, stream.go takes its connection
// if it streams, flight.go submits it and follows it through attempt.go's state machine,
// choice.go chooses its nodes, member.go carries its legs over the nodes'
// streams, and openai's events are its tokens.
//
// Locks are taken in this order: Proxy.mu, the registry's, a member's, an inbox's. None is held
// while something is written to a client or a stream.
type Proxy struct {
	cfg     Config // with defaults
	handoff handoff.Handoff
	clock   clock.Clock
	metrics *metrics.Metrics
	traces  *tracing.Traces // nil: no request is traced
	nodes   *nodes
	engines *upstream.Engines // that answer in place of nodes; nil: nodes do
	file    *openai.ModelFile // whose tokenizer is served; nil: kvferry's own
	roster  *migration.Roster // nil: requests stay where they were placed
	leases  *members.Leases   // nil if cfg names another membership

	adapters *adapters.List // that clients may ask for
	profiler profile.Profiler

	connections *admission.Connections
	bodies      *admission.Bodies
	parsing     chan struct{} // as many at once as there are CPUs; see parse
	timeouts    timeouts

	httpListener net.Listener
	grpcListener net.Listener // with leases
	http         *http.Server
	grpc         *grpc.Server // with leases

	ctx  context.Context // of every request and stream; ended when draining takes too long
	stop context.CancelCauseFunc

	mu       sync.Mutex
	draining bool          // for good
	inFlight int           // requests taken on
	waiting  int           // of these, that do not run yet
	early    int           // requests that wait for the first node, before they are taken on
	unplaced int           // prompt tokens of these that are in no node's backlog
	idle     chan struct{} // closed when draining and inFlight is 0
}

// New listens on the configured addresses. Run serves on them and, in the
// end, closes them; it must be called, once. The error is a [config.Invalid] where cfg is
// wrong, or an address cannot be had.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	hand, err := handoff.Parse(cfg.Handoff)
	if err != nil {
		return nil, err // Validate has looked
	}
	p := &Proxy{
		cfg: cfg, handoff: hand, clock: clock.Precise(), metrics: metrics.New(), idle: make(chan struct{}),
		connections: admission.NewConnections(cfg.MaxConnections), bodies: admission.NewBodies(cfg.MaxBodyBytes),
		roster: migration.New(cfg.Migration), timeouts: defaultTimeouts, parsing: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
	if n := p.connections.Limit(); n < cfg.MaxConnections {
		cfg.Logger.Warn("fewer connections than --max-connections: raise the limit on open files (ulimit -n)", "connections", n, "max_connections", cfg.MaxConnections)
	}
	if cfg.Tokenizer != "" {
		if p.file, err = openai.LoadModelFile(cfg.Tokenizer); err != nil {
			return nil, config.Faults{{Field: "Tokenizer", Err: err}}.Err("proxy.Config")
		}
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	if cfg.Upstreams.Any() {
		if err := p.useEngines(); err != nil {
			return nil, err
		}
	}
	p.nodes = newNodes(p.ctx, cfg, p.clock, p.metrics)
	p.adapters = adapters.New(cfg.LoRAs, func() openai.Model { c, _ := p.nodes.info(); return p.model(c) }, cfg.Logger)
	if p.file != nil {
		p.nodes.rules.MinVocab, p.nodes.rules.MaxVocab = p.file.Size(), math.MaxInt32
	}
	p.metrics.Register(p.clusterMetrics(), p.queueMetrics())
	if p.httpListener, err = config.Listen("HTTPAddr", cfg.HTTPAddr); err != nil {
		return nil, err
	}
	if p.cfg.Membership == nil {
		if err := p.serveLeases(); err != nil {
			_ = p.httpListener.Close()
			return nil, err
		}
	}
	if err := p.startTraces(); err != nil {
		_ = p.httpListener.Close()
		if p.grpcListener != nil {
			_ = p.grpcListener.Close()
		}
		return nil, err
	}
	p.connections.Back = admission.NewBack(p.httpListener.Addr())
	p.http = &http.Server{
		Handler:           p.handler(),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		BaseContext:       func(net.Listener) context.Context { return p.ctx },
		ConnContext:       admission.WithConnection,
		ConnState:         p.connections.State,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	return p, nil
}

// serveLeases has the nodes be those that register.
func (p *Proxy) serveLeases() (err error) {
	if p.grpcListener, err = config.Listen("GRPCAddr", p.cfg.GRPCAddr); err != nil {
		return err
	}
	p.leases = members.NewLeases(members.LeaseConfig{
		TTL: p.cfg.LeaseTTL, Rules: p.nodes.rules, Clock: p.clock, Logger: p.cfg.Logger, Streams: p.nodes,
	})
	p.cfg.Membership = p.leases
	p.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(proto.MessageSize), proto.ServerKeepalive())
	proto.RegisterRegistryServer(p.grpc, p.leases)
	return nil
}

// HTTPAddr is the address clients reach, with the port that was given for 0.
func (p *Proxy) HTTPAddr() string { return p.httpListener.Addr().String() }

// GRPCAddr is the address nodes register at; empty if they do not.
func (p *Proxy) GRPCAddr() string {
	if p.leases == nil {
		return ""
	}
	return p.grpcListener.Addr().String()
}

// Ready returns nil if a request would be served now, and else why not: what
// /health says.
func (p *Proxy) Ready() error {
	p.mu.Lock()
	draining := p.draining
	p.mu.Unlock()
	if draining {
		return attempt.Ending
	}
	return p.wait(ended)
}

// WaitReady returns once the nodes needed to serve have joined, or with the
// reason they have not when ctx ends.
func (p *Proxy) WaitReady(ctx context.Context) error { return p.wait(ctx) }

// wait returns once there is who can serve, or with the reason why not when ctx ends.
func (p *Proxy) wait(ctx context.Context) error {
	if p.engines != nil {
		return p.engines.WaitReady(ctx)
	}
	return p.nodes.wait(ctx)
}

// awaitNodes waits for the nodes that a request needs, for NodeWait at most, or returns
// the reason why they are not there.
func (p *Proxy) awaitNodes(ctx context.Context) error {
	n := p.nodes
	missing := p.wait(ended)
	if missing == nil || p.cfg.NodeWait < 0 {
		return missing
	}
	n.mu.Lock()
	n.waiting++
	first := n.waiting == 1
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.waiting--
	}()
	if first {
		p.cfg.Logger.Info("requests wait for nodes", "limit", p.cfg.NodeWait, "why", missing)
	}
	limit, cancel := context.WithTimeout(ctx, p.cfg.NodeWait)
	defer cancel()
	missing = p.wait(limit)
	switch {
	case ctx.Err() != nil && missing != nil:
		return fmt.Errorf("%w: %v", context.Cause(ctx), missing)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case missing != nil:
		return fmt.Errorf("%w, after %v (--node-wait)", missing, p.cfg.NodeWait)
	}
	return nil
}

// Run serves until ctx is done, then drains: new requests are answered 503,
// running ones have DrainTimeout to end, and the rest fail with an error. It
// returns nil after a shutdown that was asked for, however the requests fared,
// and otherwise what broke. No goroutine, listener or connection is left when it returns.
func (p *Proxy) Run(ctx context.Context) error {
	p.cfg.Logger.Info("proxy serving", "http", p.HTTPAddr(), "grpc", p.GRPCAddr(),
		"mode", p.cfg.Mode, "handoff", p.cfg.Handoff, "placement", p.cfg.Placement)
	if names := p.cfg.ServedNames; len(names) > 0 {
		p.cfg.Logger.Info("the model's names: answers and metrics have the first", "first", names[0], "others", strings.Join(names[1:], ","))
	}
	failed := make(chan error, 2)
	var servers sync.WaitGroup
	servers.Go(func() { failed <- p.http.Serve(p.connections.Listen(p.httpListener)) })
	servers.Go(func() { _ = p.http.Serve(p.connections.Back) })
	if p.leases != nil {
		servers.Go(func() { failed <- p.grpc.Serve(p.grpcListener) })
		servers.Go(func() { p.leases.Run(p.ctx) })
	}
	servers.Go(func() { p.nodes.run(p.cfg.Membership) })
	servers.Go(func() { p.roster.Run(p.ctx, p.nodes.generating) })
	if p.engines != nil {
		servers.Go(func() { p.engines.Run(p.ctx) })
	}
	servers.Go(func() { p.watchQueue(p.ctx) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		err = fmt.Errorf("proxy: %w", err)
	}
	p.drain(err == nil)
	p.close()
	p.profiler.End()
	servers.Wait()
	p.traces.End(p.cfg.Logger)
	if err == nil {
		p.cfg.Logger.Info("proxy stopped")
	}
	return err
}

// drain refuses new requests and, if wait is set, gives the running ones time.
func (p *Proxy) drain(wait bool) {
	p.mu.Lock()
	p.draining = true
	running := p.inFlight
	if running == 0 {
		close(p.idle)
	}
	p.mu.Unlock()
	if !wait || running == 0 {
		return
	}
	p.cfg.Logger.Info("proxy draining", "requests", running, "limit", max(p.cfg.DrainTimeout, 0))
	limit := time.NewTimer(p.cfg.DrainTimeout)
	defer limit.Stop()
	select {
	case <-p.idle:
	case <-limit.C:
		p.cfg.Logger.Warn("drain limit reached", "limit", max(p.cfg.DrainTimeout, 0))
	}
}

// close ends what drain left: requests, by telling their clients, then nodes'
// streams and connections. A handler that a client keeps from writing is freed
// by the end of its connection.
func (p *Proxy) close() {
	p.stop(attempt.Ending)
	ctx, cancel := context.WithTimeout(context.Background(), p.timeouts.end)
	defer cancel()
	_ = p.http.Shutdown(ctx) // what it could not end in time, Close does
	select {
	case <-p.idle:
	case <-ctx.Done():
	}
	_ = p.http.Close()
	p.connections.CloseStreams()
	<-p.idle
	p.connections.Streaming.Wait()
	if p.leases != nil {
		p.leases.Close(attempt.Ending)
		p.grpc.Stop()
	}
}
