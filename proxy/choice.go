package proxy

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"kvferry/attempt"
	"kvferry/kvcache"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/health"
	"kvferry/proxy/members"
)

// policy is what places on nodes of a role, made when it is first asked for:
// only then is the block size known. The caller holds mu.
func (n *nodes) policy(role proto.Role) (placement.Policy, error) {
	p, ok := n.places[role]
	if !ok {
		var err error
		if p, err = placement.New(n.name, int(n.cluster.BlockTokens), role != proto.Role_ROLE_DECODE); err != nil {
			return nil, fmt.Errorf("proxy: %w", err)
		}
		n.places[role] = p
		if role == proto.Role_ROLE_DECODE {
			n.local = placement.NewConditional(n.limit, int(n.cluster.BlockTokens))
		}
	}
	return p, nil
}

// prefix is what placement wants to know of a prompt's blocks for a choice: their
// hashes from root on, or nothing. Hashing is not done under the lock that every request takes.
func (n *nodes) prefix(ch choice, root kvcache.Hash, prompt []kvcache.Token) []kvcache.Hash {
	if ch.local {
		ch.role = proto.Role_ROLE_PREFILL // as it would be computed there
	}
	n.mu.Lock()
	p, err := n.policy(ch.role)
	blockTokens := int(n.cluster.BlockTokens)
	n.mu.Unlock()
	if err != nil || blockTokens == 0 || !p.WantsPrefix() {
		return nil
	}
	return kvcache.PrefixHashes(root, prompt, blockTokens)
}

// A choice is what place goes by besides the policy.
type choice struct {
	role    proto.Role
	with    *member                   // the node that has the other leg, if that is placed already
	partner proto.Role                // of the node that will get the other leg, if one will
	avoid   map[*member]attempt.Fault // those that have failed this request
	local   bool                      // if it computes the prompt where that is decoded; else none is chosen
	prompt  int                       // tokens whose KV a prefill node holds
	all     int                       // tokens whose KV any other node comes to hold
}

// place chooses a node for a leg: one that gets on, that is not quarantined, by itself or
// with its partner, and has not failed the request before; or the best there is.
func (n *nodes) place(ch choice, req placement.Request) (*member, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, err := n.policy(ch.role)
	if err != nil {
		return nil, err
	}
	now := n.clock.Now()
	var nodes []*member
	var candidates []placement.Candidate
	best := worst
	for _, m := range n.byRole[ch.role] {
		c, stalled, ok := m.usable()
		if !ok || !ch.fits(m) || !n.coupled(m, ch) {
			continue
		}
		g := good
		switch _, avoid := ch.avoid[m]; {
		case stalled:
			g = stuck
		case n.resting(now, m, ch):
			g = resting
		case avoid:
			g = failed
		}
		if g < best {
			best, nodes, candidates = g, nodes[:0], candidates[:0]
		}
		if g == best {
			nodes, candidates = append(nodes, m), append(candidates, c)
		}
	}
	if len(nodes) == 0 {
		return nil, n.none(ch)
	}
	if ch.with != nil || ch.partner != proto.Role_ROLE_UNSPECIFIED {
		req.KVBytes = int64(req.Tokens) * int64(nodes[0].info.KvTokenBytes)
	}
	i, ok := 0, true
	if ch.local {
		i, ok = n.local.Local(req, candidates, p)
	} else {
		i = p.Place(req, candidates)
	}
	if !ok {
		return nil, nil
	}
	if ch.role == proto.Role_ROLE_DECODE {
		n.local.Takes(&candidates[i], req)
	}
	m := nodes[i]
	for _, s := range subjects(m, ch.with) {
		n.quarantine.Chosen(now, s)
	}
	return m, nil
}

// fits reports whether the node has KV blocks for the request, as far as it says, and has not refused it as too large.
func (ch choice) fits(m *member) bool {
	return members.Fits(m.info, ch.prompt, ch.all) && ch.avoid[m] != attempt.TooLarge
}

// none returns why no node can have a leg: the request is too large for all of a role, or none is there now. The
// caller holds mu.
func (n *nodes) none(ch choice) error {
	for _, role := range []proto.Role{ch.role, ch.partner} {
		if all := n.byRole[role]; len(all) > 0 && !slices.ContainsFunc(all, ch.fits) {
			largest := slices.MaxFunc(all, func(a, b *member) int { return cmp.Compare(members.Room(a.info), members.Room(b.info)) })
			return fmt.Errorf("%w: prompt and max_tokens are %d tokens, too many for every %s node: the largest KV pool holds %d (--kv-blocks)", attempt.Invalid, ch.all, proto.RoleName(role), members.Room(largest.info))
		}
	}
	return fmt.Errorf("%w: no %s node that KV can move to is up", attempt.NoNode, proto.RoleName(ch.role))
}

// coupled reports whether KV can move between the node and the one that has the other leg, or one that could
// have it. The caller holds mu.
func (n *nodes) coupled(m *member, ch choice) bool {
	if ch.with != nil {
		return members.Reach(m.info, ch.with.info)
	}
	return ch.partner == proto.Role_ROLE_UNSPECIFIED || slices.ContainsFunc(n.byRole[ch.partner], func(o *member) bool {
		_, _, up := o.usable()
		return up && ch.fits(o) && members.Reach(m.info, o.info)
	})
}

// A grade says how good a choice a node is; lower is better.
type grade int

const (
	good    grade = iota
	failed        // this request, once
	resting       // quarantined
	stuck         // does not get on
	worst
)

// resting reports whether a node is quarantined, or every pair that it could be part of.
// The caller holds mu.
func (n *nodes) resting(now time.Duration, m *member, ch choice) bool {
	rests := func(s health.Subject) bool { return n.quarantine.Resting(now, s) }
	if slices.ContainsFunc(subjects(m, ch.with), rests) {
		return true
	}
	partners := n.byRole[ch.partner]
	return len(partners) > 0 && !slices.ContainsFunc(partners, func(o *member) bool {
		_, stalled, ok := o.usable()
		return ok && !stalled && !slices.ContainsFunc(subjects(m, o), rests)
	})
}

// subjects are what the outcome on a node says something of: the node, and if another has
// the other leg, the pair of them.
func subjects(m, with *member) []health.Subject {
	if with == nil {
		return health.Subjects(m.info, nil)
	}
	return health.Subjects(m.info, with.info)
}

// succeeded counts an attempt that went well, with b nil if one node had it.
func (n *nodes) succeeded(a, b *member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	for _, s := range n.concerned(a, b) {
		if n.quarantine.Succeeded(now, s) {
			n.log.Info("out of quarantine", "node", s.Node, "peer", s.Peer)
		}
	}
}

// failed counts a leg that failed on a, while b, if not nil, had the other. A transfer has
// two ends, and the one that reports it is often not the one at fault: it counts against
// both, and against the two together. A node that was lost or told to stop is no failure.
func (n *nodes) failed(a, b *member, err *attempt.LegError) {
	if !err.Fault.Strikes() {
		return
	}
	if err.Fault.Owner() != attempt.Pair {
		b = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.concerned(a, b)
	if err.Fault == attempt.NoPath && len(of) > 1 { // the pair rests at once, and neither node is at fault
		of = []health.Subject{of[1], of[1]}
	}
	now := n.clock.Now()
	for _, s := range of {
		if rest := n.quarantine.Failed(now, s); rest > 0 {
			n.log.Warn("quarantined", "node", s.Node, "peer", s.Peer, "for", rest, "err", err)
		}
	}
}

// concerned are the subjects of an attempt on nodes that are still members. The caller
// holds mu.
func (n *nodes) concerned(a, b *member) []health.Subject {
	here := func(m *member) bool { return m != nil && n.byID[m.info.Id] == m }
	switch {
	case here(a) && here(b) && a != b:
		return append(subjects(a, b), health.Subject{Node: b.info.Id})
	case here(a):
		return subjects(a, nil)
	}
	return nil
}

// leaveStalled gives up on nodes that do not get on, if there are others to go to: with
// nowhere to go, waiting is all there is. The caller holds mu.
func (n *nodes) leaveStalled(now time.Duration) {
	var any time.Duration
	for _, m := range n.byID {
		any = max(any, m.gotOn())
	}
	for _, m := range n.byID {
		if m.stuck(now, any) && n.elsewhere(m) {
			m.leaveBehind(now)
		}
	}
}

// elsewhere reports whether requests can be served without m. The caller holds mu.
func (n *nodes) elsewhere(m *member) bool {
	_, err := n.servedBy(func(o *member) bool {
		_, stalled, ok := o.usable()
		return ok && !stalled && o != m
	})
	return err == nil
}

// serving says how a request would be served now: by a prefill and a decode
// node, or by one node; or why it cannot.
func (n *nodes) serving() (disagg bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if disagg, err = n.servedBy(func(m *member) bool { _, stalled, ok := m.usable(); return ok && !stalled }); err == nil {
		return disagg, nil
	}
	return n.servedBy(func(m *member) bool { _, _, ok := m.usable(); return ok })
}

// servedBy says how a request would be served by some of the nodes. The caller holds mu.
func (n *nodes) servedBy(some func(*member) bool) (disagg bool, err error) {
	up := func(role proto.Role) bool { return slices.ContainsFunc(n.byRole[role], some) }
	p, d, both := up(proto.Role_ROLE_PREFILL), up(proto.Role_ROLE_DECODE), up(proto.Role_ROLE_NONDISAGG)
	pair := slices.ContainsFunc(n.byRole[proto.Role_ROLE_PREFILL], func(m *member) bool {
		return some(m) && slices.ContainsFunc(n.byRole[proto.Role_ROLE_DECODE], func(o *member) bool { return members.Reach(m.info, o.info) && some(o) })
	})
	switch {
	case n.mode != ModeNondisagg && pair:
		return true, nil
	case n.mode != ModeDisagg && both:
		return false, nil
	case n.mode == ModeNondisagg:
		return false, fmt.Errorf("%w: no non-disaggregated node is up", attempt.NoNode)
	case p && d:
		return false, fmt.Errorf("%w: prefill and decode nodes are up, and no KV can move between them (--rail)", attempt.NoNode)
	case p:
		return false, fmt.Errorf("%w: a prefill node is up, a decode node is missing", attempt.NoNode)
	case d:
		return false, fmt.Errorf("%w: a decode node is up, a prefill node is missing", attempt.NoNode)
	}
	return false, fmt.Errorf("%w: no prefill and decode node is up", attempt.NoNode)
}
