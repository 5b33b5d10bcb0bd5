package proxy

import (
	"context"
	"errors"
	"fmt"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/members"
)

// consider says how far the request is, and has it go where package migration wants it.
func (f *flight) consider(ctx context.Context, a *submission) {
	if f.entry == nil {
		return
	}
	if m := f.proxy.nodes.member(f.entry.Take()); m != nil && a.Movable() && m != (*a.of(a.Generates())).node && members.Reach(m.info, (*a.of(a.Generates())).node.info) && a.Migrate() {
		l, s := f.leg(ctx, a, handoff.MigrationLeg)
		s.Handoff, s.Reserve = handoff.Migration.Name, uint32(attempt.Reserve(int(s.MaxTokens)))
		a.known = len(s.Prompt) / 4
		if a.target = l; m.submit(l, s) != nil {
			a.target = nil
			_, _ = a.Failed(handoff.MigrationLeg, attempt.Lost)
		}
	}
	at := ""
	if a.Movable() {
		at = (*a.of(a.Generates())).node.info.Id
	}
	f.entry.Set(at, len(f.choice.Prompt)+len(f.delivered), a.Left(), int(f.breakdown.Migrations+a.breakdown.Migrations))
}

// moveOn does what comes next of a migration.
func (f *flight) moveOn(a *submission, next attempt.Next) {
	from := *a.of(a.Generates())
	switch next {
	case attempt.Migrate:
		a.transfer = a.kv.GetTransferId()
		from.node.tell(from, &proto.ToNode{Kind: &proto.ToNode_Migrate{Migrate: &proto.Migrate{Id: from.id, Kv: a.kv, Known: uint32(a.known)}}})
		a.kv = nil
	case attempt.Continue:
		a.target.node.tell(a.target, &proto.ToNode{Kind: &proto.ToNode_Continue{Continue: &proto.Continue{Id: a.target.id, Tokens: a.migrated.Tokens}}})
		a.target.node.expect(a.target, false)
	case attempt.Stay:
		f.metrics.NotMigrated()
		badKV := errors.Is(a.refused, attempt.Content)
		if failed, ok := errors.AsType[*attempt.LegError](a.refused); ok && !badKV { // else the node that has it finds out whose fault it is
			f.proxy.nodes.failed(a.target.node, from.node, failed)
		}
		from.node.tell(from, &proto.ToNode{Kind: &proto.ToNode_Resume{Resume: &proto.Resume{Id: from.id, Reason: fmt.Sprint(a.refused), BadKv: badKV}}})
		f.stay(a)
	}
}

// handed lets the node go that had the request.
func (f *flight) handed(a *submission) {
	from := a.of(a.Generates())
	(*from).node.cancelLeg(*from, "it goes on on another node", false)
	*from, a.target = a.target, nil
	f.decodeNode = (*from).node.info.Id
	_, paused := a.Migrations()
	b := &a.breakdown
	pause := proto.Microseconds(paused) - b.MigrationPauseUs
	a.account(a.migrated.Breakdown, a.migrated.CachedTokens)
	b.Migrations++
	b.MigrationPauseUs += pause
	f.metrics.Migrated(pause)
}

// stay ends the leg on a node that was to take the request over.
func (f *flight) stay(a *submission) {
	if a.target != nil {
		a.target.node.cancelLeg(a.target, "the request does not go on here", false)
		a.target = nil
	}
}

// member is the one of that name; nil if there is none.
func (n *nodes) member(id string) *member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byID[id]
}

// generating are the nodes of each role on which requests generate, and the tokens of a block.
func (n *nodes) generating() (groups [][]placement.Node, blockTokens int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, role := range []proto.Role{proto.Role_ROLE_DECODE, proto.Role_ROLE_NONDISAGG} {
		var nodes []placement.Node
		for _, m := range n.byRole[role] {
			c, stalled, ok := m.usable()
			m.mu.Lock()
			if m.up && !stalled {
				free := int(m.info.KvBlocks) - int(m.load.KvBlocksUsed)
				nodes = append(nodes, placement.Node{Candidate: c, FreeBlocks: free, Leaving: !ok})
			}
			m.mu.Unlock()
		}
		groups = append(groups, nodes)
	}
	return groups, int(n.cluster.BlockTokens)
}
