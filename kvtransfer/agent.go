package kvtransfer

import (
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/transport"
)

// Config of an Agent. Name, Slab and Transport.Rails are needed.
type Config struct {
	Name string // of the node, in descriptors and errors; peers' names differ
	// Slab has the blocks. Peers' slabs have the same geometry.
	Slab *kvcache.Slab
	// Location is where the slab's memory is, "cpu:1". Default "*": anywhere.
	Location string
	// Transport has the rails, which the agent owns, the clock and the rest. OnMessage
	// must be nil: messages are the agent's.
	Transport transport.Config

	// Timeout bounds each move, from when it is under way. Default 10 s.
	Timeout time.Duration
	// UnderWay is how many bytes may be under way to or from one peer, or one move that is
	// larger. Default 64 MiB: what 400 Gbit/s carry in 1.3 ms. What more there is to move
	// waits here: in the transfer engine everything under way shares the network, so that
	// of 400 prompts that come at once, 6 GB, none would land before its deadline.
	UnderWay int
	// Release sends the message that a transfer of the peer's is not needed any more, for
	// its Agent.Released. It is called at most once a transfer, and returns at once; a
	// message that is lost costs the peer its blocks until the grant's lease is over. It
	// may be nil if nothing is ever released.
	Release func(Descriptor)
	// Logger hears of what is wrong and ends nothing. Default slog.Default().
	Logger *slog.Logger
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c *Config) Validate() error {
	var bad config.Faults
	if c.Name == "" {
		bad.Add("Name", nil, "give the node a name that its peers do not have")
	}
	if c.Slab == nil {
		bad.Add("Slab", nil, "give the memory of the KV blocks")
	}
	if c.Transport.OnMessage != nil {
		bad.Check("Transport.OnMessage", errors.New("messages are the agent's: use Terms.OnArrival"))
	}
	if c.Timeout < 0 {
		bad.Add("Timeout", c.Timeout, "use a duration above 0, or 0 for the default")
	}
	if c.UnderWay < 0 {
		bad.Add("UnderWay", c.UnderWay, "use 1 byte or more, or 0 for the default")
	}
	return bad.Err("kvtransfer.Config")
}

// An Agent is the transfer half of one node. See the package comment.
type Agent struct {
	cfg     Config
	clk     clock.Clock
	tx      *transport.Engine
	segment *transport.Segment // the slab: the local side of every move, and what grants open parts of

	mu     sync.Mutex
	closed bool
	left   Left              // then
	grants map[uint64]*Grant // open, by transfer
	lanes  map[string]*lane  // by peer
	live   map[any]*Transfer // open, by key
	open   map[*Transfer]struct{}
	ended  []ended // whose moves may yet be found wrong, oldest first

	// What has yet to call back: checks, moves, grants. Added to under the lock, while the
	// agent is not closed.
	background sync.WaitGroup

	gone chan struct{} // closed when Close has done its work
	err  error         // of Close
}

// New starts an agent. It owns the rails of cfg.Transport: they are closed with it, and at
// once if New fails.
func New(cfg Config) (*Agent, error) {
	fail := func(err error) (*Agent, error) {
		for _, r := range cfg.Transport.Rails {
			err = errors.Join(err, r.Close())
		}
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return fail(err)
	}
	config.Default(&cfg.Location, "*")
	config.Default(&cfg.Timeout, 10*time.Second)
	config.Default(&cfg.UnderWay, 64<<20)
	config.Default(&cfg.Logger, slog.Default())
	config.Default(&cfg.Transport.Clock, clock.Precise())
	a := &Agent{
		cfg: cfg, clk: cfg.Transport.Clock,
		grants: make(map[uint64]*Grant), lanes: make(map[string]*lane), live: make(map[any]*Transfer), open: make(map[*Transfer]struct{}),
		gone: make(chan struct{}),
	}
	tc := cfg.Transport
	tc.OnMessage, tc.DefaultTimeout = a.message, cfg.Timeout
	config.Default(&tc.Name, cfg.Name[:min(len(cfg.Name), transport.MaxName)])
	if err := tc.Validate(); err != nil { // else a failing New closes the rails
		return fail(err)
	}
	var err error
	if a.tx, err = transport.New(tc); err != nil {
		return nil, err
	}
	// No key opens the whole slab: grants open their own blocks.
	if a.segment, err = a.tx.RegisterLocal(cfg.Name+"/kv", cfg.Slab.Bytes(), cfg.Location); err != nil {
		return nil, errors.Join(err, a.tx.Close())
	}
	return a, nil
}

// Rails is what each rail has done, in the order of Config.Transport.Rails.
func (a *Agent) Rails() []transport.RailStats { return a.tx.Rails() }

// Segment is the slab as it is registered: no key opens all of it.
func (a *Agent) Segment() transport.SegmentInfo { return a.segment.Info() }

// Left is what an agent still knows of: grants that are open, transfers that are not
// closed, and peers with moves that have not ended.
type Left struct{ Grants, Transfers, Peers int }

// Left counts what has not ended, or had not when Close was called. An engine that has
// ended all of its requests finds 0.
func (a *Agent) Left() Left {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.left
	}
	return a.leftLocked()
}

func (a *Agent) leftLocked() Left { return Left{len(a.grants), len(a.open), len(a.lanes)} }

// Close ends every grant and every move, closes the rails, and returns when the last
// callback has. Closing again waits likewise and returns the same.
func (a *Agent) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		<-a.gone
		return a.err
	}
	a.closed, a.left = true, a.leftLocked()
	grants, open := slices.Collect(maps.Values(a.grants)), slices.Collect(maps.Keys(a.open))
	a.mu.Unlock()
	for _, g := range grants {
		g.end(Shutdown)
	}
	for _, t := range open {
		t.cancel(net.ErrClosed)
	}
	a.err = a.tx.Close()
	a.background.Wait()
	close(a.gone)
	return a.err
}

// message is called by a rail when a peer's write is in our slab. Who may write for one
// transfer may not speak for another.
func (a *Agent) message(m transport.Message) {
	n, ok := decodeNotice(m.Bytes)
	a.mu.Lock()
	g := a.grants[n.Transfer]
	a.mu.Unlock()
	switch {
	case !ok || g == nil || g.terms.Op != transport.Write: // a transfer that has ended
	case g.name != m.Segment:
		if !g.strayed.Swap(true) {
			a.cfg.Logger.Warn("notices dropped: they came through another transfer's window", "window", m.Segment, "for", g.name, "rail", m.Rail)
		}
	default:
		g.terms.OnArrival(Arrival{Layer: n.Layer, Value: n.Value, At: a.clk.Now(), Digests: n.Digests, Landed: g.landed})
	}
}
