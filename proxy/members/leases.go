package members

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/internal/clock"
	"kvferry/proto"
	"kvferry/proxy/health"
)

// Leases is the Registry service, and a Membership: its nodes are those that register over
// gRPC and renew a lease. One whose lease nobody renews is gone.
type Leases struct {
	proto.UnimplementedRegistryServer

	cfg  LeaseConfig
	list *List // who there is; an incarnation is its lease's number

	mu    sync.Mutex
	ended error // why nobody registers any more
	held  map[uint64]*lease
	byID  map[string]*lease
	alone map[string]lonely // nodes that got no lease because they reach no partner
	terms *health.Terms
}

// lonely is a node without a partner, remembered until lonelyFor after it asked last: it asks every second.
type lonely struct {
	info *proto.NodeInfo
	end  time.Duration
}

const lonelyFor = 5 * time.Second

// LeaseConfig says which nodes get leases, and how long these are.
type LeaseConfig struct {
	TTL     time.Duration // how long a node may be silent
	Rules   Rules         // that a node is refused by, so that it is told why
	Clock   clock.Clock
	Logger  *slog.Logger
	Streams Streams
}

// Streams are the connections that somebody else has to the nodes: signs of life beside
// heartbeats. Its methods are called with locks of Leases held, and must not call back.
type Streams interface {
	// Heard is when a node last said something over its stream, on the clock of the
	// leases, and whether that is open.
	Heard(id string, incarnation uint64) (at time.Duration, open bool)
	// Changed returns a channel that is closed when a stream next opens or breaks.
	Changed() <-chan struct{}
}

// A lease is held by one instance of a node.
type lease struct {
	number uint64
	info   *proto.NodeInfo
	over   chan struct{} // closed at its end
	next   chan struct{} // closed at the next heartbeat; nil while nobody waits for it
}

// NewLeases has no nodes yet. Run, or who calls Step, ends the leases that are over.
func NewLeases(cfg LeaseConfig) *Leases {
	return &Leases{
		cfg: cfg, list: NewList(), held: make(map[uint64]*lease), byID: make(map[string]*lease), alone: make(map[string]lonely),
		terms: health.NewTerms(cfg.Clock.Now(), cfg.TTL),
	}
}

// Watch implements [Membership].
func (s *Leases) Watch(ctx context.Context) iter.Seq[Change] { return s.list.Watch(ctx) }

// Run ends leases that are over, until ctx is done.
func (s *Leases) Run(ctx context.Context) {
	tick := time.NewTicker(health.Every(s.cfg.TTL))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.Step(s.cfg.Clock.Now())
		case <-ctx.Done():
			return
		}
	}
}

// Step ends the leases that are over by now. If it comes late, the proxy stood still, and
// all leases get a fresh term.
func (s *Leases) Step(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over, stood := s.terms.Step(now)
	if stood > 0 {
		s.cfg.Logger.Warn("this proxy stood still: all leases get a fresh term", "for", stood.Round(time.Millisecond))
	}
	for _, number := range over {
		h := s.held[number]
		if at, open := s.cfg.Streams.Heard(h.info.Id, number); open && now < at+s.cfg.TTL {
			// Ten thousand requests that come at once may hold a heartbeat up for longer
			// than a lease. Who is heard over its stream lives.
			s.terms.Grant(at, number)
			continue
		}
		s.end(h, ErrExpired)
	}
}

// Register grants a lease. INVALID_ARGUMENT names a field that makes no sense,
// FAILED_PRECONDITION one that does not fit the cluster, and ALREADY_EXISTS another node
// that lives and has the id; a node gives up on all three. ABORTED says that it reaches no node that could have
// the other leg of its requests: it asks again, as such a node may come.
//
// An id belongs to the instance that has it for as long as that lives. A successor need
// not wait: that its predecessor is dead shows at once when its stream is broken and its
// port closed, or taken over. Where neither is the case, the answer waits for the
// holder's next heartbeat, or the end of its lease.
func (s *Leases) Register(ctx context.Context, req *proto.RegisterRequest) (*proto.RegisterReply, error) {
	info := req.GetNode()
	if err := s.cfg.Rules.Check(info); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var rival *lease // has the id, and may live
	for {
		// Before it is looked at what may change.
		changed := s.cfg.Streams.Changed()
		reply, old, err := s.grant(info)
		if reply != nil || err != nil {
			return reply, err
		}
		if rival != old {
			rival = old
			s.cfg.Logger.Warn("a second node asks for an id: waiting for a sign of life of the first", "node", info.Id, "first", old.info.GrpcAddr, "second", info.GrpcAddr)
		}
		if _, open := s.cfg.Streams.Heard(info.Id, old.number); !open && !answers(ctx, old.info.GrpcAddr) {
			s.mu.Lock()
			if s.byID[info.Id] == old {
				s.end(old, ErrReplaced)
			}
			s.mu.Unlock()
			continue
		}
		select {
		case <-s.beat(old):
			err := fmt.Errorf("node.id: %s belongs to a live node at %s: give this one another --id, or stop that one", info.Id, old.info.GrpcAddr)
			s.cfg.Logger.Warn("node refused", "node", info.Id, "err", err)
			return nil, status.Error(codes.AlreadyExists, err.Error())
		case <-old.over:
		case <-changed: // its stream broke, perhaps
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// grant grants a lease, or refuses to. It does neither while another instance, which may
// live, has the id: then it returns that one's.
func (s *Leases) grant(info *proto.NodeInfo) (reply *proto.RegisterReply, old *lease, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return nil, nil, status.Error(codes.Unavailable, s.ended.Error())
	}
	var there []*proto.NodeInfo
	for _, h := range s.byID {
		there = append(there, h.info)
	}
	if err := s.cfg.Rules.Fits(info, there); err != nil {
		s.cfg.Logger.Warn("node refused", "node", info.Id, "err", err)
		return nil, nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if err := s.partner(info, there); err != nil {
		return nil, nil, status.Error(codes.Aborted, err.Error())
	}
	if old = s.byID[info.Id]; old != nil {
		// The same instance has lost its lease; who answers at the address of another
		// has taken its place.
		if same := info.Instance != 0 && info.Instance == old.info.Instance; !same && old.info.GrpcAddr != info.GrpcAddr {
			return nil, old, nil
		}
		s.end(old, ErrReplaced)
	}
	h := &lease{number: s.list.Join(info), info: info, over: make(chan struct{})}
	s.held[h.number], s.byID[info.Id] = h, h
	s.terms.Grant(s.cfg.Clock.Now(), h.number)
	return &proto.RegisterReply{Lease: h.number, TtlMs: uint32(s.cfg.TTL.Milliseconds()), Protocol: proto.Protocol, Version: s.cfg.Rules.Version}, nil, nil
}

// partner is Partner of a node among those that hold a lease and those that were refused one for the same reason:
// two that came one after the other have each other. The caller holds mu.
func (s *Leases) partner(info *proto.NodeInfo, there []*proto.NodeInfo) error {
	now := s.cfg.Clock.Now()
	_, again := s.alone[info.Id]
	for id, l := range s.alone {
		if now > l.end || id == info.Id {
			delete(s.alone, id)
			continue
		}
		there = append(there, l.info)
	}
	err := Partner(info, there)
	if err != nil && !again {
		s.cfg.Logger.Warn("node refused until it has a partner", "node", info.Id, "err", err)
	}
	if err != nil {
		s.alone[info.Id] = lonely{info, now + lonelyFor}
	}
	return err
}

// answers reports whether somebody listens at an address.
func answers(ctx context.Context, addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// beat returns a channel that is closed at the next heartbeat of a lease.
func (s *Leases) beat(h *lease) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.next == nil {
		h.next = make(chan struct{})
	}
	return h.next
}

// KeepAlive renews a lease.
func (s *Leases) KeepAlive(_ context.Context, req *proto.KeepAliveRequest) (*proto.KeepAliveReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.held[req.Lease]
	if h == nil {
		return nil, status.Errorf(codes.NotFound, "lease %d: unknown or expired: register again", req.Lease)
	}
	s.terms.Grant(s.cfg.Clock.Now(), req.Lease)
	s.list.Report(req.Lease, req.Load, req.Rails)
	if h.next != nil {
		close(h.next)
		h.next = nil
	}
	return &proto.KeepAliveReply{TtlMs: uint32(s.cfg.TTL.Milliseconds())}, nil
}

// Deregister ends a lease. The node's stream stays open for the legs it has,
// so that a node that deregisters and then drains loses none; a node that goes
// at once breaks the stream, and its legs are placed elsewhere.
func (s *Leases) Deregister(_ context.Context, req *proto.DeregisterRequest) (*proto.DeregisterReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[req.Lease]; h != nil {
		s.end(h, ErrLeft)
	}
	return &proto.DeregisterReply{}, nil
}

// end ends a lease. The caller holds mu.
func (s *Leases) end(h *lease, cause error) {
	s.terms.End(h.number)
	delete(s.held, h.number)
	delete(s.byID, h.info.Id)
	s.list.Leave(h.number, cause)
	close(h.over)
}

// Close ends every lease. Who registers from now on is told the cause and tries again.
func (s *Leases) Close(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = cause
	s.list.Close(cause) // in order, before the leases in none
	for _, h := range s.held {
		s.end(h, cause)
	}
}
