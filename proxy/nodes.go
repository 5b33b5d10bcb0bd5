package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"kvferry/internal/clock"
	"kvferry/internal/version"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/ahead"
	"kvferry/proxy/health"
	"kvferry/proxy/members"
	"kvferry/proxy/metrics"
	"kvferry/proxy/openai"
)

// nodes are the members of the cluster as this proxy has them, by role: what a membership
// tells, and a stream to each. Both are needed for a node to be placed on; either one
// ending is the node's loss. Who gets a request is in choice.go.
type nodes struct {
	mode      string
	rules     members.Rules
	log       *slog.Logger
	clock     clock.Clock
	beat      time.Duration                   // how often to step
	name      string                          // of the placement policy
	limit     int                             // of conditional disaggregation
	label     string                          // the model's in metrics; empty: what the nodes call it
	roundTrip func(*ahead.Path) time.Duration // what a path says, unless a test says it
	dial      []grpc.DialOption               // tests: nodes in memory

	metrics *metrics.Metrics

	ctx     context.Context // every member's parent
	streams sync.WaitGroup  // of the members

	mu         sync.Mutex
	byID       map[string]*member
	byRole     map[proto.Role][]*member        // sorted by id
	places     map[proto.Role]placement.Policy // once there was a node to place on
	local      *placement.Conditional          // with the policy of decode nodes
	cluster    members.Cluster                 // the last one's, when all nodes are gone
	changed    chan struct{}                   // closed at the next change of who is usable
	pause      health.Pause
	quarantine *health.Quarantine
	waiting    int // requests, for nodes that are not there
}

func newNodes(ctx context.Context, cfg Config, c clock.Clock, counts *metrics.Metrics) *nodes {
	label := ""
	if len(cfg.ServedNames) > 0 {
		label = cfg.ServedNames[0]
	}
	return &nodes{
		label:      label,
		mode:       cfg.Mode,
		rules:      members.Rules{Handoff: cfg.Handoff, MinVocab: openai.MinVocab, MaxVocab: openai.MaxVocab, MixedProfiles: cfg.AllowMixedProfiles, Version: version.String()},
		log:        cfg.Logger,
		clock:      c,
		beat:       health.Every(cfg.LeaseTTL),
		name:       cfg.Placement,
		limit:      cfg.ConditionalDisaggregation,
		roundTrip:  (*ahead.Path).RoundTrip,
		metrics:    counts,
		ctx:        ctx,
		byID:       make(map[string]*member),
		byRole:     make(map[proto.Role][]*member),
		places:     make(map[proto.Role]placement.Policy),
		changed:    make(chan struct{}),
		pause:      health.NewPause(c.Now(), cfg.LeaseTTL),
		quarantine: health.NewQuarantine(),
	}
}

// run keeps a stream to every node that there is, and leaves those that do not get on,
// until the nodes' ctx is done. When it returns, all streams are closed.
func (n *nodes) run(from members.Membership) {
	var follower sync.WaitGroup
	follower.Go(func() {
		for change := range from.Watch(n.ctx) {
			n.apply(change)
		}
	})
	tick := time.NewTicker(n.beat)
	defer tick.Stop()
	for n.ctx.Err() == nil {
		select {
		case <-tick.C:
			n.step(n.clock.Now())
		case <-n.ctx.Done():
		}
	}
	follower.Wait() // nobody joins from here on
	n.streams.Wait()
}

// step leaves nodes that do not get on, unless the proxy did not listen.
func (n *nodes) step(now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pause.Step(now) > 0 {
		for _, m := range n.byID {
			m.excuse(now)
		}
	}
	n.leaveStalled(now)
	for _, m := range n.byID {
		m.giveUp(now)
	}
}

// apply is what the membership tells. Of a node that was refused here it tells in vain.
func (n *nodes) apply(c members.Change) {
	n.mu.Lock()
	m := n.byID[c.Node.Info.GetId()]
	if m != nil && m.incarnation != c.Node.Incarnation {
		m = nil
	}
	switch {
	case c.Kind == members.Joined:
		m = n.join(c.Node)
	case c.Kind == members.Gone && m != nil:
		n.remove(m, c.Cause)
		m = nil
	}
	n.mu.Unlock()
	if m != nil {
		m.reported(c.Node)
	}
}

// join makes a node a member, unless it could not work with the others: whoever names it
// may know less of them than leases do. The caller holds mu.
func (n *nodes) join(node members.Node) *member {
	info := node.Info
	err := n.rules.Check(info)
	if err == nil {
		err = n.rules.Fits(info, n.infos())
	}
	if err != nil {
		n.log.Warn("node refused", "node", info.GetId(), "err", err)
		return nil
	}
	if len(n.byID) > 0 && !n.cluster.SameProfile(info) {
		n.log.Warn("nodes of different profiles", "node", info.Id, "profile", info.Profile, "fingerprint", info.ProfileFingerprint, "cluster", n.profiles())
	}
	if room := members.Room(info); room > 0 && room < int(info.MaxModelLen) {
		n.log.Warn("the node's KV pool holds less than its max_model_len: longer requests go to other nodes, if there are any (--kv-blocks)",
			"node", info.Id, "pool_tokens", room, "max_model_len", info.MaxModelLen)
	}
	m := newMember(n.ctx, node)
	m.log, m.clock, m.metrics, m.changed, m.roundTrip, m.dial = n.log, n.clock, n.metrics.Engine(n.labelOf(info.Model), info.Id), n.notify, n.roundTrip, slices.Clip(n.dial)
	n.byID[info.Id] = m
	list := append(n.byRole[info.Role], m)
	slices.SortFunc(list, func(a, b *member) int { return cmp.Compare(a.info.Id, b.info.Id) })
	n.byRole[info.Role] = list
	n.agree()
	n.streams.Go(m.run)
	return m
}

// remove takes out a node that is gone: at once and with its legs lost, unless it left in
// good order. The caller holds mu.
func (n *nodes) remove(m *member, cause error) {
	delete(n.byID, m.info.Id)
	n.quarantine.Forget(m.info.Id)
	n.metrics.Gone(n.labelOf(m.info.Model), m.info.Id)
	n.byRole[m.info.Role] = slices.DeleteFunc(n.byRole[m.info.Role], func(o *member) bool { return o == m })
	n.agree()
	if errors.Is(cause, members.ErrLeft) {
		n.log.Info("node left", "node", m.info.Id)
		m.leave()
	} else {
		n.log.Warn("node lost", "node", m.info.Id, "err", cause)
		m.cancel(cause)
	}
	n.notifyLocked()
}

// labelOf is what metrics call a node's model.
func (n *nodes) labelOf(model string) string { return cmp.Or(n.label, model) }

// infos are the members' own words. The caller holds mu.
func (n *nodes) infos() (all []*proto.NodeInfo) {
	for _, m := range n.byID {
		all = append(all, m.info)
	}
	return all
}

// profiles lists the nodes' profiles: "decode-1: a10 (0123456789abcdef)". The caller
// holds mu.
func (n *nodes) profiles() []string {
	var all []string
	for _, m := range n.byID {
		all = append(all, fmt.Sprintf("%s: %s (%s)", m.info.Id, m.info.Profile, m.info.ProfileFingerprint))
	}
	slices.Sort(all)
	return all
}

// agree sets what the nodes agree on. The caller holds mu.
func (n *nodes) agree() {
	c, ok := members.Agree(n.infos())
	if !ok {
		return
	}
	if c.BlockTokens != n.cluster.BlockTokens {
		clear(n.places) // they count in the blocks of nodes that are gone
	}
	n.cluster = c
}

func (n *nodes) notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notifyLocked()
}

func (n *nodes) notifyLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// Heard implements [members.Streams].
func (n *nodes) Heard(id string, incarnation uint64) (at time.Duration, open bool) {
	m := n.member(id)
	if m == nil || m.incarnation != incarnation {
		return 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard, m.up
}

// Changed implements [members.Streams].
func (n *nodes) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

// info is what the cluster serves; false before the first node.
func (n *nodes) info() (members.Cluster, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster, n.cluster.Model != ""
}

// wait returns once the cluster can serve, or with the reason it cannot when
// ctx ends.
func (n *nodes) wait(ctx context.Context) error {
	for {
		changed := n.Changed()
		_, err := n.serving()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// snapshot lists the members, prefill nodes first, by id.
func (n *nodes) snapshot() []*member {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*member
	for _, role := range []proto.Role{proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE, proto.Role_ROLE_NONDISAGG} {
		all = append(all, n.byRole[role]...)
	}
	return all
}

// forgetPrefixes has placement start anew: what it believes nodes to have, they have no more.
func (n *nodes) forgetPrefixes() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.places)
}

// A NodeState is a member of the cluster, as the proxy sees it now. What it points to is
// the proxy's own, and never changes: do not change it either.
type NodeState struct {
	Info    *proto.NodeInfo
	URL     string        // of an engine; nodes have none
	Up      bool          // it takes requests
	Stalled bool          // it was left because it does not get on
	Stalls  uint64        // how often
	Silence time.Duration // how long it may say nothing while it owes something
	Legs    int           // of requests that it has
	Load    *proto.Load
	Rails   []*proto.RailLoad
	// Adapters are the LoRA adapters in slots, or on their way there, and MaxLoRAs how many slots there are.
	Adapters []string
	MaxLoRAs int
}

// Nodes lists the members, prefill nodes first, by id; or the engines.
func (p *Proxy) Nodes() []NodeState {
	if p.engines != nil {
		return p.engineStates()
	}
	return p.nodes.states()
}

func (n *nodes) states() []NodeState {
	var all []NodeState
	for _, m := range n.snapshot() {
		_, stalled, up := m.usable()
		m.mu.Lock()
		all = append(all, NodeState{
			Info: m.info, Up: up, Stalled: stalled, Stalls: m.stalls, Silence: m.progress.Limit(), Legs: len(m.legs), Load: m.load, Rails: m.rails,
			Adapters: m.load.Adapters, MaxLoRAs: int(m.load.AdapterSlots),
		})
		m.mu.Unlock()
	}
	return all
}
