package proxy

import (
	"errors"
	"slices"

	"kvferry/attempt"
	"kvferry/proto"
)

// This file finds out where KV went bad. What a decode node has found wrong when it landed may
// have changed in the memory of the node that computed it, or on its way: that node is asked,
// and the attempt ends with its answer.
//
//	decode node ── CONTENT ──▶ proxy ── doubt ──▶ prefill node
//	                           proxy ◀── SOUND: the wire, CHANGED: its memory

// doubt takes the failure of a leg, and the reports behind it that are unread. It returns nil if
// another node has to say first whose it is: one that has found its memory changed by itself, and
// ended its leg, may have said so already.
func (f *flight) doubt(a *submission, r report, unread []report, fault error) error {
	leg, ok := errors.AsType[*attempt.LegError](fault)
	if !ok || r.failed == nil {
		return fault
	}
	bad := r.failed.GetBreakdown().GetKvBlocksBad()
	switch {
	case leg.Fault == attempt.Changed:
		f.metrics.BadBlocks(proto.RoleName(r.leg.node.info.Role), bad)
	case leg.Fault != attempt.Content || r.leg != a.decode || a.compute == nil || a.Complete():
	case a.compute.node.doubt(a.compute, leg.Err.Error()), slices.ContainsFunc(unread, a.compute.ended), f.inbox.has(a.compute.ended):
		a.doubted, a.bad = leg, bad
		return nil
	}
	return fault
}

// verdict takes what the node says that was asked. A token that it has emitted may have been
// drawn from the bad block if that is its own, and is drawn once more by the next attempt.
func (f *flight) verdict(a *submission, r report) error {
	if r.leg != a.compute || r.failed == nil && r.lost == nil {
		return nil
	}
	switch r.failed.GetCode() {
	case proto.FailCode_FAIL_SOUND:
		f.metrics.BadBlocks("wire", a.bad)
		a.decode.node.blameKV(a.decode, a.doubted.Err.Error())
		return a.doubted
	case proto.FailCode_FAIL_CHANGED:
		f.metrics.BadBlocks(proto.RoleName(r.leg.node.info.Role), r.failed.GetBreakdown().GetKvBlocksBad())
		return a.fail(r.leg, proto.FailCode_FAIL_CHANGED, true, errors.New(r.failed.GetMessage()))
	}
	return a.doubted
}

// doubt asks the node of a leg whether its KV is still right, which it owes an answer to. It
// reports whether the node has the leg. A node that does not answer in time loses it.
func (m *member) doubt(l *leg, reason string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.legs[l.id] != l {
		return false
	}
	if !l.owed {
		l.owed = true
		m.progress.Owe(m.clock.Now(), l.tokens)
	}
	l.asked = true
	l.due = m.clock.Now() + m.patience(l)
	m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: l.id, Reason: reason, Doubt: true}}})
	return true
}

// blameKV tells the node of a leg, which may have ended, that the KV that it moved came out wrong
// and is right where it came from.
func (m *member) blameKV(l *leg, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up {
		m.enqueue(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: l.id, Reason: reason, BadKv: true}}})
	}
}
