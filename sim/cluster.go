package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"kvferry/attempt"
	"kvferry/connector"
	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/engine/eos"
	"kvferry/fabric"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/load"
	"kvferry/load/dispatch"
	"kvferry/placement"
)

// Config is a cluster. Either Nondisagg or both Prefill and Decode are above 0.
type Config struct {
	Profile                    *engine.Profile
	Prefill, Decode, Nondisagg int             // nodes
	Chunked                    bool            // of non-disaggregated nodes
	Handoff                    handoff.Handoff // with Prefill and Decode
	Placement                  string          // see package placement; round-robin if empty
	ConditionalDisaggregation  int             // prompts of at most so many tokens to compute are computed where they are decoded; 0: none
	PrefixCaching              bool
	Tiers                      kvcache.TierConfig // of each node
	KVBlocks                   int                // blocks of a node's pool; the profile's if 0
	NICs                       []NIC              // of every prefill and decode node; a transfer is spread over all by their rates
	// DecodeNICs are what the NICs of decode nodes are like instead, where links are not equal: node
	// i's like the i-th, and then from the first again. Default: as NICs.
	DecodeNICs []NIC
	// Oversubscription of the leaf switches, one above the prefill nodes and one above the decode
	// nodes: what the NICs below a leaf carry together, by what its uplinks carry. 0 and 1: the
	// switches hold nothing back.
	Oversubscription float64
	Migration        placement.MigrationConfig // which running requests go on on other nodes
	RPC              time.Duration             // what a control message takes, tokens to the proxy included; 0 to 1 s
	EOS              eos.Lengths               // of answers that may stop; eos.Default if zero
	Ranks            engine.Ranks              // of LoRA adapters

	// RecordTokens keeps the time of each token in the Outcome.
	RecordTokens bool
	// OnOutcome is told of every request that has ended, in order of time. The
	// Outcome is the callee's.
	OnOutcome func(*Outcome)
	// OnGap is told of every time between two tokens of a request (ITL).
	OnGap func(time.Duration)
	// OnProgress is told now and then how many requests have ended.
	OnProgress func(ended int)
}

// DefaultRPC is what a message between the proxy and a node, or two nodes, takes
// on the machines of the published table's replay: gRPC over loopback between
// processes that share two cores, 0.1 to 0.3 ms with the wake-ups at both ends. It
// decides little by itself, but under hand-off v0 who asks first.
const DefaultRPC = 200 * time.Microsecond

// maxNodes bounds the nodes of a kind, and blocks, a number that nobody has.
const maxNodes, maxBlocks = 1 << 20, 1 << 30

// maxOversubscription is far more than anybody builds.
const maxOversubscription = 1000

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	var bad config.Faults
	if c.Profile == nil {
		bad.Add("Profile", nil, "say what the modelled GPU costs")
	} else {
		bad.Check("Chunked", c.Profile.CheckChunked(c.Chunked))
	}
	config.Between(&bad, "Prefill", c.Prefill, 0, maxNodes)
	config.Between(&bad, "Decode", c.Decode, 0, maxNodes)
	config.Between(&bad, "Nondisagg", c.Nondisagg, 0, maxNodes)
	config.Between(&bad, "KVBlocks", c.KVBlocks, 0, maxBlocks)
	const kinds = "a cluster has prefill and decode nodes, at least one of each, or nodes that do both"
	switch pair := c.Prefill > 0 || c.Decode > 0; {
	case c.Nondisagg > 0 && pair:
		bad.Add("Nondisagg", c.Nondisagg, kinds+": leave one kind out")
	case c.Nondisagg > 0:
	case c.Prefill == 0 && pair:
		bad.Add("Prefill", c.Prefill, kinds)
	case c.Decode == 0 && pair:
		bad.Add("Decode", c.Decode, kinds)
	case !pair:
		bad.Add("Nondisagg", c.Nondisagg, kinds)
	}
	if c.Nondisagg == 0 {
		bad.Refuse(c.Handoff == handoff.None, "Handoff", nil, "use one of %v", handoff.Names())
	}
	bad.Refuse(len(c.NICs) == 0 && (c.Nondisagg == 0 || c.Migration.Migrates()), "NICs", 0, "nodes that move KV have at least one")
	for i, n := range c.NICs {
		bad.Check(fmt.Sprintf("NICs[%d]", i), n.validate())
	}
	for i, n := range c.DecodeNICs {
		bad.Check(fmt.Sprintf("DecodeNICs[%d]", i), n.validate())
	}
	if c.Placement != "" && !slices.Contains(placement.Names(), c.Placement) {
		bad.Add("Placement", c.Placement, "use one of %s", strings.Join(placement.Names(), ", "))
	}
	c.Migration.Check(&bad)
	if o := c.Oversubscription; o != 0 && !(o >= 1 && o <= maxOversubscription) {
		bad.Add("Oversubscription", o, "use 1 to %d: 4 is a leaf whose uplinks carry a quarter of what its NICs do", maxOversubscription)
	}
	config.Between(&bad, "ConditionalDisaggregation", c.ConditionalDisaggregation, 0, math.MaxInt32)
	if c.ConditionalDisaggregation > 0 && c.Nondisagg > 0 {
		bad.Add("ConditionalDisaggregation", c.ConditionalDisaggregation, "nodes that do both compute every prompt: leave it out")
	}
	bad.Check("Tiers", c.Tiers.Validate(c.PrefixCaching || c.Profile != nil && c.Profile.RadixCache()))
	config.Between(&bad, "RPC", c.RPC, 0, time.Second)
	bad.Check("EOS", c.EOS.Validate())
	return bad.Err("sim.Config")
}

// cluster is a run under way.
type cluster struct {
	cfg     Config
	queue   *dispatch.Queue
	now     time.Duration
	agenda  agenda
	network fabric.Network[*transfer]
	latency time.Duration // of a transfer: the slowest NIC's
	ready   []*node       // with something in the inbox, in order

	nodes           []*node
	names           map[string]*node
	compute, decode group
	local           *placement.Conditional
	flights         map[uint64]*flight
	expected        bool                // an arrival is in the agenda,
	expectedAt      time.Duration       // at this time, or several are and this is the earliest
	migration       placement.Migration // nil for none
	balancing       bool                // the next time that it is asked is in the agenda
	plain           bool                // every step, and every layer on its way, is an event
	stats           Stats
	path            []*port         // scratch
	tokens          []attempt.Token // scratch
	err             error
}

// group is the nodes a leg can go to.
type group struct {
	nodes      []*node
	candidates []placement.Candidate
	policy     placement.Policy
}

func newCluster(cfg Config, l load.Load) (*cluster, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	config.Default(&cfg.Placement, placement.RoundRobin)
	if cfg.KVBlocks == 0 {
		cfg.KVBlocks = cfg.Profile.Blocks()
	}
	cfg.EOS = cfg.EOS.OrDefault()
	cfg.Migration = cfg.Migration.WithDefaults()
	cfg.PrefixCaching = cfg.PrefixCaching || cfg.Profile.RadixCache()
	c := &cluster{
		cfg: cfg, queue: dispatch.New(l),
		names: make(map[string]*node), flights: make(map[uint64]*flight),
		local: placement.NewConditional(cfg.ConditionalDisaggregation, cfg.Profile.KVGeometry.BlockTokens),
	}
	for _, n := range slices.Concat(cfg.NICs, cfg.DecodeNICs) {
		c.latency = max(c.latency, n.Latency)
	}
	_, tokenTime := cfg.Profile.Slowest()
	var faults []error
	var err error
	if c.migration, err = cfg.Migration.New(cfg.Profile.KVGeometry.BlockTokens); err != nil {
		faults = append(faults, fmt.Errorf("sim: Migration: %w", err))
	}
	group := func(g *group, role string, count int, disagg, compute bool) {
		var err error
		rate := 0.0 // of the nodes' NICs together
		if g.policy, err = placement.New(cfg.Placement, cfg.Profile.KVGeometry.BlockTokens, compute); err != nil {
			faults = append(faults, fmt.Errorf("sim: Placement: %w", err))
		}
		g.candidates = make([]placement.Candidate, count)
		for i := range count {
			nics := cfg.NICs
			if role == "decode" && len(cfg.DecodeNICs) > 0 {
				nics = slices.Repeat([]NIC{cfg.DecodeNICs[i%len(cfg.DecodeNICs)]}, len(cfg.NICs))
			}
			n, err := c.newNode(fmt.Sprintf("%s-%d", role, i), disagg, nics)
			if err != nil {
				faults = append(faults, err)
				return
			}
			n.stats.Role = role
			g.candidates[i] = placement.Candidate{
				ID: n.name, Blocks: cfg.Tiers.Holds(cfg.KVBlocks, cfg.Profile.KVGeometry), LinkBytesPerSecond: rateOf(nics), TokenTime: tokenTime, SequenceTime: cfg.Profile.SequenceTime(),
			}
			rate += rateOf(nics)
			n.load = &g.candidates[i]
			g.nodes = append(g.nodes, n)
		}
		leaf := newLeaf(rate, cfg.Oversubscription)
		for _, n := range g.nodes {
			n.leaf = leaf
		}
	}
	if cfg.Nondisagg > 0 {
		group(&c.compute, "nondisagg", cfg.Nondisagg, false, true)
	} else {
		group(&c.compute, "prefill", cfg.Prefill, true, true)
		group(&c.decode, "decode", cfg.Decode, true, false)
	}
	return c, errors.Join(faults...)
}

func (c *cluster) newNode(name string, disagg bool, nics []NIC) (*node, error) {
	prof := c.cfg.Profile
	pool := kvcache.NewPool(c.cfg.KVBlocks, prof.KVGeometry.BlockTokens, c.cfg.PrefixCaching)
	cfg := batching.ConfigOf(prof, c.cfg.Chunked && !disagg, pool)
	cfg.PrefixCaching = c.cfg.PrefixCaching
	cfg.Tiers = c.cfg.Tiers.New(prof.KVGeometry)
	costs := prof.Costs
	if disagg {
		costs = prof.DisaggEngine()
	}
	sched, err := batching.NewScheduler(cfg)
	if err != nil {
		return nil, err
	}
	// Nothing is lost here, so nothing need be given up.
	core, err := connector.NewCore(connector.Config{Scheduler: sched, Pool: pool, Profile: prof})
	if err != nil {
		return nil, err
	}
	n := &node{c: c, name: name, core: core, pool: pool, tiers: cfg.Tiers, bus: newBus(c.cfg.Tiers), endAt: never, cost: engine.NewCostModel(costs, prof.KVGeometry), askers: make(map[uint64]asker)}
	for _, nic := range nics {
		n.tx = append(n.tx, fabric.NewPort[*transfer](nic.BytesPerSecond))
		n.rx = append(n.rx, fabric.NewPort[*transfer](nic.BytesPerSecond))
	}
	n.stats.Name, n.stats.Blocks = name, c.cfg.KVBlocks
	c.nodes = append(c.nodes, n)
	c.names[name] = n
	return n, nil
}

// send has an event reach a node at a time.
func (c *cluster) send(n *node, ev connector.Event, at time.Duration) {
	n.halt()
	if at <= c.now {
		n.tell(ev)
		return
	}
	c.agenda.Push(at, event{node: n, kind: deliver, ev: ev})
}

// place chooses the node for a leg.
func (c *cluster) place(g *group, f *flight) *node {
	r := c.asks(f, g.policy.WantsPrefix() || g == &c.decode && c.cfg.ConditionalDisaggregation > 0 && c.compute.policy.WantsPrefix())
	i := g.policy.Place(r, g.candidates)
	if g == &c.decode {
		c.local.Takes(&g.candidates[i], r)
	}
	return g.nodes[i]
}

// placeLocal chooses a decode node that computes the prompt itself; nil if none does.
func (c *cluster) placeLocal(f *flight) *node {
	if c.cfg.ConditionalDisaggregation == 0 {
		return nil
	}
	g, r := &c.decode, c.asks(f, c.compute.policy.WantsPrefix())
	i, ok := c.local.Local(r, g.candidates, g.policy)
	if !ok {
		return nil
	}
	c.local.Takes(&g.candidates[i], r)
	return g.nodes[i]
}

// asks is what placement may look at.
func (c *cluster) asks(f *flight, prefix bool) placement.Request {
	r := placement.Request{Tokens: len(f.prompt), MaxTokens: f.want, KVBytes: c.kvBytes(f), Adapter: f.Adapter}
	if prefix {
		r.Prefix = f.prefix(c.cfg.Profile.KVGeometry.BlockTokens)
	}
	return r
}

// kvBytes is what the KV of a prompt takes, where it moves.
func (c *cluster) kvBytes(f *flight) int64 {
	if c.cfg.Nondisagg > 0 {
		return 0
	}
	return int64(len(f.prompt)) * int64(c.cfg.Profile.KVGeometry.TokenBytes())
}

// run goes through events until none is left.
func (c *cluster) run(ctx context.Context) error {
	c.expect()
	for round := 0; c.err == nil; round++ {
		for i := 0; i < len(c.ready); i++ {
			c.ready[i].step()
		}
		c.ready = c.ready[:0]
		if round&0xfff == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at, ok := c.agenda.First()
		if done, moving := c.network.First(); moving && (!ok || done <= at) {
			if done == fabric.Never {
				return errNever
			}
			c.advance(done)
			if t := c.network.Finish(c.now); t.over() {
				c.sent(t, c.now)
			}
			continue
		}
		if !ok {
			break
		}
		c.advance(at)
		c.handle(c.agenda.Pop())
	}
	return c.err
}

// errNever is of links or buses that are too slow for what crosses them.
var errNever = errors.New("sim: what moves between nodes, or to their tiers, is not there within 146 years: use faster links")

func (c *cluster) advance(at time.Duration) {
	if at < c.now {
		panic(fmt.Sprintf("sim: time runs backwards: %v after %v", at, c.now))
	}
	c.now = at
	c.stats.Events++
}

func (c *cluster) handle(e event) {
	n := e.node
	switch e.kind {
	case wake:
		if c.now == n.wakeAt { // else another has been set since
			n.wakeAt = 0
			n.rouse()
		}
	case stepEnd:
		n.stepped()
	case post:
		c.post(e.transfer)
	case deliver:
		n.tell(e.ev)
	case landed:
		e.transfer.landed()
	case arrive:
		c.arrive()
	case balance:
		c.balance()
	}
}
