package cluster

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"kvferry/engine"
	"kvferry/handoff"
	"kvferry/internal/config"
	"kvferry/kvcache"
	"kvferry/node"
	"kvferry/proto"
	"kvferry/proxy"
	"kvferry/sim"
	"kvferry/transport/pacing"
)

// A Spec describes a cluster, whether its daemons are processes of this machine ([Start]), run
// elsewhere, or are modelled ([Spec.Model]). It describes one daemon too, whose flags are the
// knobs of [Knobs] for its role. A zero value is the default everywhere.
type Spec struct {
	Prefill, Decode, Nondisagg int // nodes: either Nondisagg, or both others, are above 0

	Profile string          // a shipped profile's name, or a JSON file. Default the shipped A10
	Costs   *engine.Profile // in place of Profile, if it is not nil
	// The next fields replace what the profile says, if they are not zero.
	Scheduler                    string
	MaxModelLen                  int
	MaxNumSeqs, MaxBatchedTokens int
	MaxLoRAs, MaxCPULoRAs        int
	MergeLoRAs                   engine.Merging

	Link        string   // model of one NIC, see [node.ResolveLink]. Default native
	DecodeLinks []string // the same of decode nodes, in turn. Default Link

	// What only the model has: daemons have a network.
	NICs             int           // of each node that moves KV. Default 1
	RPC              time.Duration // see [sim.Config]; negative for none. Default [sim.DefaultRPC]
	Oversubscription float64       // see [sim.Config]. Default 1

	Proxy proxy.Config
	Node  node.Config // of each node; Start sets ID, Role and Proxy

	LogLevel  string // of the daemons: debug, info, warn or error. Default info
	LogFormat string // text or json. Default text
	// Log gets the standard error of the daemons that Start starts, from a goroutine for each of
	// them, one Write at a time. Default none. What it does not take is lost: a full disk must
	// not end the daemons.
	Log io.Writer
	// StopTimeout is how long [Cluster.Close] lets a daemon drain before it kills it. Default 5 s.
	StopTimeout time.Duration
}

// maxNICs of a node: more than any server has slots for.
const maxNICs = 64

// Engine returns the profile with what the Spec says in its place. It is not valid if the Spec
// is not.
func (s *Spec) Engine() (*engine.Profile, error) {
	p := s.Costs
	if p == nil {
		name := s.Profile
		config.Default(&name, engine.DefaultProfile)
		var err error
		if p, err = engine.LoadProfile(name); err != nil {
			return nil, config.Faults{{Field: "Profile", Err: err}}.Err("cluster.Spec")
		}
	}
	q := *p.WithScheduler(s.Scheduler).WithLoRA(s.MaxLoRAs, s.MaxCPULoRAs, s.MergeLoRAs)
	q.SetBatch(s.MaxNumSeqs, s.MaxBatchedTokens)
	if s.MaxModelLen != 0 && s.MaxModelLen != q.MaxModelLen {
		q.MaxModelLen = s.MaxModelLen
		q.MaxBatchedTokens = max(q.MaxBatchedTokens, s.MaxModelLen) // a step must hold the longest prompt
	}
	return &q, nil
}

// FitLoad raises MaxModelLen to what the longest request of a load needs, prompt and output
// together, as far as a node's pool holds it.
func (s *Spec) FitLoad(longest int) {
	p, err := s.Engine()
	if err != nil || s.MaxModelLen != 0 || longest <= p.MaxModelLen {
		return
	}
	blocks := s.Node.KVBlocks
	config.Default(&blocks, p.Blocks())
	s.MaxModelLen = max(min(longest, blocks*p.KVGeometry.BlockTokens), p.MaxModelLen)
}

// Adapt has the cluster serve LoRA adapters by their names, which are NAME or NAME=RANK, and
// leaves the names alone in *adapters.
func (s *Spec) Adapt(adapters *[]string) error {
	s.Proxy.LoRAs = nil
	var errs []error
	for i, text := range *adapters {
		name, rank, err := engine.ParseAdapter(text)
		errs = append(errs, err)
		(*adapters)[i] = name
		s.Proxy.LoRAs = append(s.Proxy.LoRAs, proxy.LoRA{Name: name, Path: strconv.Itoa(rank)})
	}
	return errors.Join(errs...)
}

// ranks returns the ranks of the adapters, where their paths are ranks.
func (s *Spec) ranks() engine.Ranks {
	ranks := engine.Ranks{}
	for _, l := range s.Proxy.LoRAs {
		if _, rank, err := engine.ParseAdapter(l.String()); err == nil {
			ranks[l.Name] = rank
		}
	}
	return ranks
}

// LoRAs returns adapters of these ranks as a proxy has them.
func LoRAs(ranks engine.Ranks) (loras []proxy.LoRA) {
	for _, name := range slices.Sorted(maps.Keys(ranks)) {
		loras = append(loras, proxy.LoRA{Name: name, Path: strconv.Itoa(ranks[name])})
	}
	return loras
}

// MovesKV reports whether its nodes move KV to each other.
func (s *Spec) MovesKV() bool { return s.Nondisagg == 0 || s.Proxy.Migration.Migrates() }

// ProxyConfig returns the configuration of the proxy.
func (s *Spec) ProxyConfig() proxy.Config {
	c := s.Proxy
	c.Settings = Knobs.For(Proxy).JSON(s)
	return c
}

// NodeConfig returns the configuration of a node. An error is a [config.Invalid]; the rest is
// not validated.
func (s *Spec) NodeConfig() (node.Config, error) {
	c := s.Node
	var bad config.Faults
	var err error
	if c.Profile, err = s.Engine(); err != nil {
		bad.Check("", err)
		return c, bad.Err("node.Config")
	}
	c.Link, err = node.ResolveLink(c.Profile, s.Link)
	bad.Check("Link", err)
	c.Tiers = s.tiers()
	c.Settings = Knobs.For(Node).JSON(s)
	return c, bad.Err("node.Config")
}

func (s *Spec) tiers() kvcache.TierConfig {
	t := s.Node.Tiers
	config.Default(&t.PCIe, kvcache.DefaultPCIe)
	config.Default(&t.Disk, kvcache.DefaultDisk)
	return t
}

// daemon returns the Spec of one of the cluster's nodes.
func (s *Spec) daemon(role proto.Role, id, registry string) *Spec {
	d := *s
	d.Node.Role, d.Node.ID, d.Node.Proxy = role, id, registry
	d.Node.Chunked = s.Node.Chunked && role == proto.Role_ROLE_NONDISAGG
	if !s.MovesKV() {
		d.Link = "" // whatever links the profile has
	}
	_, number, _ := strings.Cut(id, "-")
	if i, err := strconv.Atoi(number); role == proto.Role_ROLE_DECODE && err == nil && len(s.DecodeLinks) > 0 {
		d.Link = s.DecodeLinks[i%len(s.DecodeLinks)]
	}
	return &d
}

// Validate lists every fault of a cluster of processes, by its field, as a [config.Invalid].
func (s *Spec) Validate() error {
	var bad config.Faults
	for _, n := range []struct {
		field string
		v     int
	}{{"Prefill", s.Prefill}, {"Decode", s.Decode}, {"Nondisagg", s.Nondisagg}, {"KVBlocks", s.Node.KVBlocks}} {
		bad.Refuse(n.v < 0, n.field, n.v, "use 0 or more")
	}
	if s.Nondisagg == 0 && (s.Prefill == 0 || s.Decode == 0) {
		bad.Add("Nondisagg", s.Nondisagg, "with %d prefill and %d decode nodes, nothing is served: use one of it, or one of each of the others", s.Prefill, s.Decode)
	}
	bad.Check("", s.ProxyConfig().Validate())
	role := proto.Role_ROLE_NONDISAGG
	if s.Prefill > 0 {
		role = proto.Role_ROLE_PREFILL
	}
	n, err := s.daemon(role, "node", "localhost:1").NodeConfig()
	bad.Check("", err)
	for _, l := range s.DecodeLinks {
		if n.Profile != nil {
			_, err := node.ResolveLink(n.Profile, l)
			bad.Check("DecodeLinks", err)
		}
	}
	if err == nil {
		bad.Check("", n.Validate())
	}
	if len(bad) == 0 {
		s.checkMemory(&bad, n)
	}
	return bad.Err("cluster.Spec")
}

// checkMemory holds what all nodes touch before they serve to the memory that is left:
// each sees only its own.
func (s *Spec) checkMemory(bad *config.Faults, n node.Config) {
	nodes := int64(s.Prefill + s.Decode)
	if left, ok := kvcache.Available(); ok && nodes > 0 && warmed(n) > left/nodes {
		bad.Add("WarmBytes", n.WarmBytes>>20, "%d nodes have so many MiB of their pools in memory, and %d are left on this machine: use %d or less", nodes, left>>20, left>>20/nodes)
	}
}

// warmed is how many bytes of its pool a node has in memory before it serves: WarmBytes, or all.
func warmed(n node.Config) int64 {
	config.Default(&n.WarmBytes, node.DefaultWarmBytes)
	pool := int64(n.Profile.Blocks())
	if n.KVBlocks > 0 {
		pool = int64(n.KVBlocks)
	}
	return min(int64(n.WarmBytes), pool*int64(n.Profile.KVGeometry.SlotBytes()))
}

// FitWarm returns Node.WarmBytes, or less where this machine has not so much left for each node
// that moves KV: three quarters of what it has. The rest is for what they and their clients take
// besides.
func (s *Spec) FitWarm() int {
	n, err := s.daemon(proto.Role_ROLE_PREFILL, "node", "localhost:1").NodeConfig()
	left, ok := kvcache.Available()
	nodes := int64(s.Prefill + s.Decode)
	if err != nil || !ok || nodes == 0 {
		return s.Node.WarmBytes
	}
	if room := left / nodes * 3 / 4; warmed(n) > room {
		return int(room) >> 20 << 20
	}
	return s.Node.WarmBytes
}

// errNative is why a model has no native link.
var errNative = errors.New(`"native": it is this machine's network: in virtual time name a link of the profile, or a rate such as 100gbit`)

// nic reads the model of a NIC.
func nic(p *engine.Profile, text string) (sim.NIC, error) {
	l, err := node.ResolveLink(p, text)
	switch {
	case err != nil:
		return sim.NIC{}, err
	case l == nil:
		return sim.NIC{}, errNative
	case math.IsInf(l.BytesPerSecond, 0):
		return sim.NIC{}, fmt.Errorf("%q: it is infinite: name a rate that is not", text)
	}
	return sim.NIC{BytesPerSecond: l.BytesPerSecond, Latency: l.Latency}, nil
}

// PacedLink returns the model of the NICs of its prefill nodes. It is nil for the network as
// it is, and for nodes that move no KV.
func (s *Spec) PacedLink() (*pacing.Link, error) {
	p, err := s.Engine()
	if err != nil || !s.MovesKV() {
		return nil, err
	}
	return node.ResolveLink(p, s.Link)
}

// Model returns the cluster in virtual time. An error lists every fault by its field, as a
// [config.Invalid].
func (s *Spec) Model() (sim.Config, error) {
	var bad config.Faults
	p, err := s.Engine()
	if err != nil {
		bad.Check("", err)
		return sim.Config{}, bad.Err("cluster.Spec")
	}
	// A context that was made longer is checked with the pool, by the simulation.
	asked := *s
	asked.MaxModelLen = 0
	if p, err := asked.Engine(); err == nil {
		bad.Check("Profile", p.Validate())
	}
	bad.Refuse(s.MaxModelLen < 0, "MaxModelLen", s.MaxModelLen, "use 1 or more")
	placement := s.Proxy.WithDefaults().Placement
	cfg := sim.Config{
		Profile: p, Prefill: s.Prefill, Decode: s.Decode, Nondisagg: s.Nondisagg, Chunked: s.Node.Chunked, Placement: placement, Migration: s.Proxy.Migration,
		PrefixCaching: s.Node.PrefixCaching, KVBlocks: s.Node.KVBlocks, RPC: s.rpc(), Oversubscription: s.Oversubscription, Tiers: s.tiers(), Ranks: s.ranks(), EOS: s.Proxy.EOS,
	}
	if s.MovesKV() {
		if s.Nondisagg == 0 {
			cfg.ConditionalDisaggregation = s.Proxy.ConditionalDisaggregation
			cfg.Handoff, err = handoff.Parse(s.Proxy.WithDefaults().Handoff)
			bad.Check("Handoff", err)
			for _, text := range s.DecodeLinks {
				n, err := nic(p, text)
				bad.Check("DecodeLinks", err)
				cfg.DecodeNICs = append(cfg.DecodeNICs, n)
			}
		}
		one, err := nic(p, s.Link)
		bad.Check("Link", err)
		count := max(s.NICs, 1)
		config.Between(&bad, "NICs", count, 1, maxNICs)
		for range min(count, maxNICs) {
			cfg.NICs = append(cfg.NICs, one)
		}
	}
	if len(bad) == 0 { // or what follows from a fault is said too
		bad.Check("", cfg.Validate())
	}
	return cfg, bad.Err("cluster.Spec")
}

func (s *Spec) rpc() time.Duration {
	switch {
	case s.RPC == 0:
		return sim.DefaultRPC
	case s.RPC < 0:
		return 0
	}
	return s.RPC
}
