package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/engine/modelled"
	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/config"
	"kvferry/internal/version"
	"kvferry/kvcache"
	"kvferry/proto"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/rails"
	"kvferry/transport/topology"
)

// DefaultRail is what a node moves KV over that is given nothing else: TCP sockets, which
// nodes of the same machine reach.
const DefaultRail = "127.0.0.1:0"

// DefaultWarmBytes are 8 prompts of the shipped profile's longest row, 66 MB each.
const DefaultWarmBytes = 512 << 20

// Config describes a prefill, decode or non-disaggregated node. ID, Role and
// Proxy are required; a zero value of another field is its default.
type Config struct {
	ID   string     // unique in the cluster
	Role proto.Role // prefill, decode or non-disaggregated

	Proxy string // host:port of the proxy's registry
	// GRPCAddr is where the proxy and other nodes reach this one, host:port; port
	// 0 takes a free one. Default 127.0.0.1:0.
	GRPCAddr string
	// Rails are what KV moves over, one a NIC, as package transport/rails reads
	// them: 10.0.0.2:9101, tcp/eth0, rdma/mlx5_0. Default DefaultRail.
	Rails []string

	// Select says how transfers are spread over several rails.
	// Default transport.Affinity.
	Select transport.Selection
	// Matrix is a file with rows that replace those of this machine's topology, in
	// Mooncake's format: which NICs are near which memory. Default none.
	Matrix string
	// KVLocation is the NUMA node that the KV pool's memory comes from, "cpu:1"; its
	// transfers then prefer the NICs near it. Default "*": anywhere, and any NIC.
	KVLocation string

	// Profile is what the modelled GPU costs. Default engine.DefaultProfile.
	Profile *engine.Profile
	// Model is the name clients ask for. Default the profile's.
	Model string
	// Chunked schedules prompts in chunks beside decodes instead of prefill first.
	Chunked       bool
	PrefixCaching bool
	// Tiers are modelled host memory and disk below the prefix cache. Default none.
	Tiers kvcache.TierConfig
	// KVBlocks overrides the pool's size, which the profile's KVBytes give. Memory is
	// taken as blocks are used, so a profile's pool may be larger than this machine's
	// memory; one that is asked for may not.
	KVBlocks int
	// Allocate makes the pool's memory. Default what Rails are fastest with, rails.Allocator.
	Allocate transport.Allocator
	// WarmBytes of the pool are backed by memory before the node serves, if it is one
	// of a prefill/decode pair. On a virtual machine the first touch of memory goes to
	// the host: 2.5 ms a MB were seen, many times what a transfer into it takes.
	// Default 512 MiB, some 30 prompts of 256 tokens; negative is none.
	WarmBytes int
	// TokensFromKV has the modelled GPU draw each token from all KV bytes of its sequence, as they lie
	// in the pool at that moment: a wrong byte gives wrong tokens. Each step then reads all KV of its
	// sequences, and all KV is written. Nodes of one cluster need the same. Default off: tokens
	// follow from the tokens before them.
	TokensFromKV bool
	// KVChecks lists, with commas, when KV blocks are compared with the digests that were made when
	// they were computed: always "landing" (from another node); "hit" (the prefix cache had them),
	// "first" (before a decode node's first token leaves), "last" (before its last), "every=64"
	// (each so many of its tokens). "none" alone makes no digests either, and goes with no node
	// that has them. docs/fidelity.md has what each costs. Default DefaultKVChecks.
	KVChecks string
	// Link paces this node's transfers to a modelled NIC; nil is the real network.
	Link *pacing.Link
	// Ledger is a file by which the nodes of this machine that have the same share their modelled
	// NICs: what several of them move to or from one meets there. Without it only what one node
	// moves does.
	Ledger string

	// TransferTimeout bounds one transfer of KV. Default 10 s.
	TransferTimeout time.Duration
	// HoldTimeout is how long computed blocks wait for their consumer.
	// Default 60 s.
	HoldTimeout time.Duration
	// DrainTimeout is how long running requests may take to end after the node was
	// asked to stop. Default 30 s; negative: they are ended at once.
	DrainTimeout time.Duration

	// NewScheduler makes what forms the node's steps, over the blocks of its pool. The node
	// owns both. Default continuous batching as Profile, Chunked and PrefixCaching say.
	NewScheduler func(*kvcache.Pool) (engine.Scheduler, error)
	// NewExecutor makes what computes the node's steps, over the memory of its blocks, on its
	// clock. The node owns it, and closes it before the blocks go. Default the modelled GPU
	// of Profile.
	NewExecutor func(*kvcache.Slab, clock.Clock) (engine.Executor, error)

	// Settings are what the node tells the proxy of its configuration, for /server_info, by names.
	// Default nil: nothing.
	Settings map[string]any

	Logger *slog.Logger // default slog.Default
	Clock  clock.Clock  // default clock.Precise

	decorate func(transport.Rail) transport.Rail // tests: faults of rails
	underWay int                                 // tests: see kvtransfer.Config
}

func (c *Config) setDefaults() error {
	config.Default(&c.GRPCAddr, "127.0.0.1:0")
	config.Default(&c.KVLocation, topology.Any)
	if len(c.Rails) == 0 {
		c.Rails = []string{DefaultRail}
	}
	if c.Allocate == nil {
		c.Allocate = rails.Allocator(c.Rails)
	}
	if c.Profile == nil {
		p, err := engine.LoadProfile(engine.DefaultProfile)
		if err != nil {
			return err
		}
		c.Profile = p
	}
	config.Default(&c.Model, c.Profile.Model)
	c.PrefixCaching = c.PrefixCaching || c.Profile.RadixCache()
	config.Default(&c.KVChecks, DefaultKVChecks)
	config.Default(&c.WarmBytes, DefaultWarmBytes)
	config.Default(&c.TransferTimeout, 10*time.Second)
	config.Default(&c.HoldTimeout, time.Minute)
	config.Default(&c.DrainTimeout, 30*time.Second)
	config.Default(&c.Logger, slog.Default())
	config.Default(&c.Clock, clock.Precise())
	if c.KVBlocks == 0 && c.Profile.KVGeometry.Validate() == nil {
		c.KVBlocks = c.Profile.Blocks()
	}
	return nil
}

// scheduler makes what forms the node's steps, over the blocks of its pool and the tiers below it.
func (c *Config) scheduler(pool *kvcache.Pool, tiers *kvcache.Tiers) (engine.Scheduler, error) {
	if c.NewScheduler != nil {
		return c.NewScheduler(pool)
	}
	sc := batching.ConfigOf(c.Profile, c.Chunked, pool)
	sc.PrefixCaching, sc.Tiers = c.PrefixCaching, tiers
	return batching.NewScheduler(sc)
}

// executor makes what computes the node's steps.
func (c *Config) executor(slab *kvcache.Slab) (engine.Executor, error) {
	if c.NewExecutor != nil {
		return c.NewExecutor(slab, c.Clock)
	}
	costs := c.Profile.Costs
	if c.Role != proto.Role_ROLE_NONDISAGG {
		costs = c.Profile.DisaggEngine()
	}
	m, err := modelled.New(c.Clock, costs, slab, c.Profile.Vocab)
	if err == nil {
		m.TokensFromKV = c.TokensFromKV
	}
	return m, err
}

// schedulerName is what the node says of its scheduler.
func (c *Config) schedulerName() string {
	if c.NewScheduler != nil {
		return ""
	}
	return c.Profile.Scheduler()
}

// Validate lists every fault by its field, as a [config.Invalid].
func (c Config) Validate() error {
	asked := c.KVBlocks
	if err := c.setDefaults(); err != nil {
		return err
	}
	var bad config.Faults
	if c.ID == "" {
		bad.Add("ID", nil, "give the node a name that is unique in the cluster, like decode-1")
	}
	if c.Role == proto.Role_ROLE_UNSPECIFIED {
		bad.Add("Role", nil, "use prefill, decode or nondisagg")
	}
	bad.Check("Proxy", config.ServerAddress(c.Proxy))
	bad.Check("GRPCAddr", config.PeerAddress(c.GRPCAddr))
	rails.Check(&bad, c.Rails)
	_, err := parseKVChecks(c.KVChecks)
	bad.Check("KVChecks", err)
	bad.Check("KVLocation", topology.CheckLocation(c.KVLocation))
	if c.Matrix != "" {
		_, err := topology.ReadMatrix(c.Matrix)
		bad.Check("Matrix", err)
	}
	if c.Role == proto.Role_ROLE_DECODE && c.Chunked {
		bad.Check("Chunked", errors.New("a decode node computes no prompts: leave it out, or run a node that serves alone (--role both)"))
	} else if c.Role == proto.Role_ROLE_PREFILL && c.Chunked {
		bad.Check("Chunked", errors.New("a prefill node computes whole prompts: leave it out, or run a node that serves alone"))
	}
	bad.Check("Chunked", c.Profile.CheckChunked(c.Chunked))
	bad.Check("Tiers", c.Tiers.Validate(c.PrefixCaching))
	if c.Tiers.Asked() && c.NewScheduler != nil {
		bad.Check("Tiers", errors.New("they are the default scheduler's: leave NewScheduler out"))
	}
	if c.Link != nil {
		bad.Check("Link", c.Link.Validate())
	} else if c.Ledger != "" {
		bad.Add("Ledger", c.Ledger, "leave it out, or model a NIC with Link: the real network needs none")
	}
	for _, d := range []struct {
		field string
		d     time.Duration
	}{{"TransferTimeout", c.TransferTimeout}, {"HoldTimeout", c.HoldTimeout}} {
		if d.d < time.Millisecond {
			bad.Add(d.field, d.d, "use 1ms or more")
		}
	}
	if err := c.Profile.Validate(); err != nil {
		bad.Check("Profile", err)
	} else {
		c.checkMemory(&bad, asked)
	}
	return bad.Err("node.Config")
}

// checkMemory holds the pool to the memory that is left, of which asked blocks were asked
// for. What is more would have the kernel end the process.
func (c *Config) checkMemory(bad *config.Faults, asked int) {
	if c.KVBlocks < 1 || uint64(c.KVBlocks) > math.MaxUint32 {
		bad.Add("KVBlocks", c.KVBlocks, "use 1 to %d", uint32(math.MaxUint32))
		return
	}
	left, ok := kvcache.Available()
	if !ok {
		return
	}
	block := int64(c.Profile.KVGeometry.SlotBytes())
	pool := int64(c.KVBlocks) * block
	switch {
	case asked > 0 && pool > left:
		bad.Add("KVBlocks", asked, "these blocks take %d MiB, and %d MiB of memory are left here: use %d or less", pool>>20, left>>20, left/block)
	case c.Role != proto.Role_ROLE_NONDISAGG && min(int64(c.WarmBytes), pool) > left:
		bad.Check("WarmBytes", fmt.Errorf("%d MiB: %d MiB of memory are left here: use less", c.WarmBytes>>20, left>>20))
	}
}

// geometryName is equal for nodes whose blocks of the same number of tokens are
// alike, byte for byte, and are used alike.
func (c *Config) geometryName() string {
	g, use := c.Profile.KVGeometry, ""
	if c.TokensFromKV {
		use = ", tokens drawn from it (--tokens-from-kv)"
	}
	if c.KVChecks == "none" { // its KV would be taken unchecked by nodes that have digests
		use += ", without digests (--kv-checks none)"
	}
	return fmt.Sprintf("%d layers, %d KV heads of %d x %d bytes, hidden %d%s", g.Layers, g.KVHeads, g.HeadDim, g.ElemBytes, g.HiddenSize, use)
}

// info is what the node tells the registry.
func (n *Node) info() *proto.NodeInfo {
	c, p := &n.cfg, n.cfg.Profile
	info := &proto.NodeInfo{
		Id: c.ID, Role: c.Role, GrpcAddr: n.GRPCAddr(), Model: c.Model, Profile: p.Name,
		MaxModelLen: uint32(p.MaxModelLen), BlockTokens: uint32(p.KVGeometry.BlockTokens),
		KvGeometry: c.geometryName(), KvBlocks: uint32(c.KVBlocks), PrefixBlocks: uint32(c.Tiers.Holds(c.KVBlocks, p.KVGeometry)), Handoffs: handoff.Names(),
		Instance: n.w.instance, Vocab: uint32(p.Vocab), ProfileFingerprint: p.Fingerprint(), Link: linkName(c.Link), Chunked: c.Chunked,
		Scheduler: c.schedulerName(), Version: version.String(), Protocol: proto.Protocol, Reach: n.reach,
	}
	info.KvTokenBytes, info.SequenceNs = uint32(p.KVGeometry.TokenBytes()), uint32(min(p.SequenceTime(), math.MaxUint32))
	step, token := p.Slowest()
	info.StepUs, info.PromptTokenNs = proto.Microseconds(step), uint32(min(token, math.MaxUint32))
	if text, err := json.Marshal(c.Settings); err == nil {
		info.Settings = string(text)
	}
	for i, r := range n.kv.Rails() {
		info.Rails = append(info.Rails, rails.WithOptions(r.Name, c.Rails[i]))
	}
	return info
}
