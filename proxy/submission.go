package proxy

import (
	"cmp"
	"errors"
	"fmt"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/proto"
)

// A submission is one attempt at what is left of a request, with the nodes that carry its
// legs and the sum of their accounts. The Attempt, which the simulator has too, says what
// comes next; it knows legs by their kind only, and a submission knows which node each is on.
// It belongs to its flight's goroutine.
type submission struct {
	*attempt.Attempt
	compute *leg    // that computes the prompt: full or prefill
	decode  *leg    // nil unless there is one
	local   *member // a decode node that computes the prompt itself; nil unless one does
	target  *leg    // on a node that is to take the request over; nil if none is

	kv *proto.KVRef // what the first leg has offered, until the second needs it no more

	known    int             // tokens that the target knows, prompt included
	transfer uint64          // to it
	migrated *proto.Migrated // what the node said that has it
	refused  error           // why the target cannot take it

	doubted *attempt.LegError // KV of compute's landed wrong, and its node is asked where it went bad
	bad     uint32            // blocks of it

	breakdown proto.Breakdown // times are sums over the legs, in microseconds
	cached    uint32          // prompt tokens, the most that a leg has found
}

// kindOf is which leg of this submission l is; false of those of earlier ones.
func (s *submission) kindOf(l *leg) (handoff.Leg, bool) {
	switch {
	case l == nil:
	case l == s.decode:
		return handoff.DecodeLeg, true
	case l == s.target:
		return handoff.MigrationLeg, true
	case l == s.compute:
		return s.Computes(), true
	}
	return handoff.FullLeg, false
}

// of is where the leg of a kind is kept, nil if it has not been submitted.
func (s *submission) of(kind handoff.Leg) **leg {
	switch kind {
	case handoff.DecodeLeg:
		return &s.decode
	case handoff.MigrationLeg:
		return &s.target
	}
	return &s.compute
}

// concerned are the legs that a failure on a node may be the fault of, that which computes the
// prompt and the other. While it is not known where the KV goes, it has nothing to do with what
// becomes of the decode leg.
func (s *submission) concerned(node string) (compute, decode *leg) {
	if s.compute != nil && s.Undirected(handoff.PrefillLeg) && s.compute.node.info.Id != node {
		return nil, s.decode
	}
	return s.compute, s.decode
}

// token takes one token and appends to ready those that are now in order.
func (s *submission) token(ready []attempt.Token, t arrival) ([]attempt.Token, error) {
	kind, ok := s.kindOf(t.leg)
	if !ok {
		return ready, nil
	}
	ready, err := s.Token(ready, kind, attempt.Token{Position: int(t.position), ID: t.token, At: t.at})
	return ready, s.blame(t.leg, err)
}

// report takes what a node said of a leg, and appends to ready tokens that came with it. The
// error, if any, ends the submission.
func (s *submission) report(ready *[]attempt.Token, r report) (next attempt.Next, err error) {
	kind, ok := s.kindOf(r.leg)
	if !ok {
		return attempt.Wait, nil
	}
	switch {
	case r.lost != nil:
		fault := attempt.Lost
		switch {
		case errors.Is(r.lost, errOverdue): // by the fault of either node
			fault = attempt.Transfer
		case errors.Is(r.lost, attempt.ErrBroken):
			fault = attempt.Internal
		}
		next, err = s.Failed(kind, &attempt.LegError{Node: r.leg.node.info.Id, Leg: kind, Fault: fault, Retryable: true, Err: r.lost})
	case r.failed != nil && r.failed.Code == proto.FailCode_FAIL_UNDIRECTED:
		next, err = s.GaveUp(kind)
	case r.failed != nil:
		s.breakdown.Sum(r.failed.Breakdown)
		s.refused = s.fail(r.leg, r.failed.Code, r.failed.Retryable, errors.New(r.failed.Message))
		next, err = s.Failed(kind, s.refused)
	case r.migrated != nil && r.migrated.TransferId == s.transfer:
		s.migrated, s.refused = r.migrated, errors.New(r.migrated.Message)
		*ready, next, err = s.Migrated(*ready, kind, proto.TokenIDs(r.migrated.Tokens), r.at)
	case r.migrated != nil: // of one that was given up
	case r.reserved != nil:
		switch err = s.offered(kind, r.leg, r.reserved.Kv); {
		case err == nil:
			s.kv = r.reserved.Kv
			next, err = s.Reserved(kind, r.reserved.Kv != nil)
		case kind == handoff.MigrationLeg: // the request stays where it is
			s.refused = s.blame(r.leg, err)
			next, err = s.Failed(kind, s.refused)
		}
	case r.prefilled != nil:
		if err = s.offered(kind, r.leg, r.prefilled.Kv); err == nil {
			next, err = s.Prefilled(kind, r.prefilled.Kv != nil)
		}
		if err == nil {
			s.account(r.prefilled.Breakdown, r.prefilled.CachedTokens)
			s.kv = r.prefilled.Kv
		}
	case r.finished != nil:
		if next, err = s.Finished(kind); err == nil {
			s.account(r.finished.Breakdown, r.finished.CachedTokens)
		}
	}
	return next, s.blame(r.leg, err)
}

// offered checks blocks that a leg's node offers, if it does.
func (s *submission) offered(kind handoff.Leg, l *leg, kv *proto.KVRef) error {
	info := l.node.info
	switch {
	case kv == nil:
		return nil
	case kv.NodeId != info.Id || kv.GrpcAddr != info.GrpcAddr:
		return fmt.Errorf("%w: kv names node %q at %q, not itself", attempt.ErrBroken, kv.NodeId, kv.GrpcAddr)
	}
	o := attempt.Offer{Tokens: int(kv.Tokens), First: kv.FirstToken, Pool: info.KvBlocks}
	for _, b := range kv.Blocks {
		o.Blocks = append(o.Blocks, attempt.Block{Index: b.GetIndex(), ID: b.GetId()})
	}
	return s.Offered(kind, o)
}

// account adds what a leg says of itself. Two legs may have looked for the same prompt.
func (s *submission) account(b *proto.Breakdown, cached uint32) {
	s.breakdown.Sum(b)
	s.cached = max(s.cached, cached)
}

// blame names the leg in an error of the state machine, which knows no node.
func (s *submission) blame(l *leg, err error) error {
	if _, named := errors.AsType[*attempt.LegError](err); !named && errors.Is(err, attempt.ErrBroken) {
		code := proto.FailCode_FAIL_INTERNAL
		if attempt.OfPair(err) {
			code = proto.FailCode_FAIL_CONTENT
		}
		return s.fail(l, code, true, err)
	}
	return err
}

// fail is the error of a leg, with its node; flight.blame adds the request.
func (s *submission) fail(l *leg, code proto.FailCode, retryable bool, err error) error {
	kind, _ := s.kindOf(l)
	return &attempt.LegError{Node: l.node.info.Id, Leg: kind, Fault: attempt.Reported(int32(code)), Retryable: retryable, Err: err}
}

// legs are those of the API's messages.
var legs = map[handoff.Leg]proto.Leg{
	handoff.FullLeg: proto.Leg_LEG_FULL, handoff.PrefillLeg: proto.Leg_LEG_PREFILL, handoff.DecodeLeg: proto.Leg_LEG_DECODE,
	handoff.MigrationLeg: proto.Leg_LEG_DECODE,
}

// roles are the nodes that legs go to.
var roles = map[handoff.Leg]proto.Role{
	handoff.FullLeg: proto.Role_ROLE_NONDISAGG, handoff.PrefillLeg: proto.Role_ROLE_PREFILL, handoff.DecodeLeg: proto.Role_ROLE_DECODE,
}

// choiceOf says which nodes may take a leg of the submission: the second goes with the node of
// the first, and the first to one for which there is a partner.
func (s *submission) choiceOf(kind handoff.Leg) choice {
	ch := choice{role: roles[kind], with: cmp.Or(nodeOf(s.compute), nodeOf(s.decode))}
	if ch.with == nil && s.Second() != kind {
		ch.partner = roles[s.Second()]
	}
	return ch
}
