package members_test

import (
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/members"
	"kvferry/proxy/members/memberstest"
)

const ttl = 3 * time.Second

// A leases is the lease service with a clock that the test moves.
type leases struct {
	*members.Leases
	t     *testing.T
	clock clocktest.Stoppable
	log   clocktest.Log
	held  map[string]uint64
}

// noStreams are nobody's: heartbeats are all there is.
type noStreams struct{}

func (noStreams) Heard(string, uint64) (time.Duration, bool) { return 0, false }
func (noStreams) Changed() <-chan struct{}                   { return nil }

func newLeases(t *testing.T, streams members.Streams) *leases {
	s := &leases{t: t, held: make(map[string]uint64)}
	s.Leases = members.NewLeases(members.LeaseConfig{
		TTL: ttl, Rules: members.Rules{Handoff: "pull", MaxVocab: 1000}, Clock: &s.clock, Logger: slog.New(slog.NewTextHandler(&s.log, nil)), Streams: streams,
	})
	return s
}

func (s *leases) join(info *proto.NodeInfo) {
	s.t.Helper()
	reply, err := s.Register(s.t.Context(), &proto.RegisterRequest{Node: info})
	if err != nil || reply.TtlMs != 3000 {
		s.t.Fatalf("%v, %v", reply, err)
	}
	s.held[info.Id] = reply.Lease
}

func (s *leases) renew(id string, load *proto.Load) {
	s.t.Helper()
	if reply, err := s.KeepAlive(s.t.Context(), &proto.KeepAliveRequest{Lease: s.held[id], Load: load}); err != nil || reply.TtlMs != 3000 {
		s.t.Fatalf("%s: %v, %v", id, reply, err)
	}
}

// until moves the clock as often as Run would, or the proxy would take it that it stood
// still. The nodes in renewed renew their leases meanwhile.
func (s *leases) until(at time.Duration, renewed map[string]uint64) {
	for now := s.clock.Now(); now < at; now = s.clock.Now() {
		s.clock.Stop(min(at, now+50*time.Millisecond))
		for id := range renewed {
			s.renew(id, nil)
		}
		s.Step(s.clock.Now())
	}
}

func TestLeases(t *testing.T) {
	memberstest.Test(t, synctest.Test, func(t *testing.T) memberstest.Subject {
		s := newLeases(t, noStreams{})
		return memberstest.Subject{
			Membership: s,
			Join:       s.join,
			Report:     s.renew,
			Drain:      func(id string) { s.renew(id, &proto.Load{Draining: true}) },
			Leave: func(id string) {
				t.Helper()
				if _, err := s.Deregister(t.Context(), &proto.DeregisterRequest{Lease: s.held[id]}); err != nil {
					t.Error(err)
				}
				delete(s.held, id)
			},
			Fail: func(id string) error {
				others := maps.Clone(s.held)
				delete(others, id)
				s.until(s.clock.Now()+ttl, others)
				delete(s.held, id)
				return members.ErrExpired
			},
			Close: func() { s.Close(errClosed) },
		}
	})
}

// there are the nodes that a watcher that comes now is told of.
func (s *leases) there() (ids []string) {
	s.t.Helper()
	s.join(memberstest.Node("~last", 1)) // after all others
	for c := range s.Watch(s.t.Context()) {
		if c.Node.Info.Id == "~last" {
			break
		}
		ids = append(ids, c.Node.Info.Id)
	}
	return ids
}

// TestLeaseLength: a lease is as long as the proxy is told, and as it tells the node. A
// renewal makes it as long again.
func TestLeaseLength(t *testing.T) {
	s := newLeases(t, noStreams{})
	s.join(memberstest.Node("node-1", 1))
	s.until(ttl-1, nil)
	s.renew("node-1", nil)
	s.until(2*ttl-2, nil)
	if len(s.there()) != 1 {
		t.Error("a lease that was renewed ended early")
	}
	s.until(2*ttl-1, nil)
	if got := s.there(); len(got) != 0 {
		t.Errorf("a lease of %v is held %v after its last renewal", ttl, ttl)
	}
	if _, err := s.KeepAlive(t.Context(), &proto.KeepAliveRequest{Lease: s.held["node-1"]}); status.Code(err) != codes.NotFound {
		t.Errorf("a renewal after its end: %v", err)
	}
}

// TestStoodStill: a proxy that was stopped for a minute has heard nobody, which says nothing
// of the nodes.
func TestStoodStill(t *testing.T) {
	s := newLeases(t, noStreams{})
	s.join(memberstest.Node("node-1", 1))
	s.until(50*time.Millisecond, nil)
	if text := s.log.String(); text != "" {
		t.Errorf("it did not stand still, and the log says %s", text)
	}
	s.clock.Stop(time.Minute)
	s.Step(s.clock.Now())
	s.renew("node-1", nil)
	if text := s.log.String(); strings.Count(text, "this proxy stood still") != 1 || !strings.Contains(text, "for=59.95s") {
		t.Errorf("it stood still, and the log says %s", text)
	}
}

// TestRefused: a node that makes no sense or does not fit the cluster is told so by the code
// that has it give up, and gets no lease. The log says who did not fit.
func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*proto.NodeInfo)
		code   codes.Code
		want   string
		lines  int
	}{
		"a field that makes no sense": {func(n *proto.NodeInfo) { n.Vocab = 0 }, codes.InvalidArgument, "node.vocab: 0", 0},
		"one that does not fit":       {func(n *proto.NodeInfo) { n.Model = "other" }, codes.FailedPrecondition, "node.model: node-2 serves", 1},
	} {
		s := newLeases(t, noStreams{})
		s.join(memberstest.Node("node-1", 1))
		n := memberstest.Node("node-2", 1)
		tc.change(n)
		if reply, err := s.Register(t.Context(), &proto.RegisterRequest{Node: n}); reply != nil || status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v, want %v: %s", name, reply, err, tc.code, tc.want)
		}
		if got := s.there(); len(got) != 1 || got[0] != "node-1" {
			t.Errorf("%s: there are %v", name, got)
		}
		if text := s.log.String(); strings.Count(text, "node refused") != tc.lines || strings.Count(text, "node=node-2") != tc.lines {
			t.Errorf("%s: the log says %q", name, text)
		}
	}
	s := newLeases(t, noStreams{})
	if _, err := s.Register(t.Context(), &proto.RegisterRequest{}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no node: %v", err)
	}
}

// streams are those of nodes that all have said something at one time.
type streams struct {
	mu      sync.Mutex
	heard   time.Duration
	open    bool
	changed chan struct{}
}

func (s *streams) Heard(string, uint64) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heard, s.open
}

func (s *streams) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// TestHeardOverItsStream: heartbeats may be held up where ten thousand requests come at
// once. A node whose stream speaks keeps its lease, one that is silent on both loses it, and
// one whose stream broke has nothing of what it said.
func TestHeardOverItsStream(t *testing.T) {
	for _, open := range []bool{true, false} {
		heard := &streams{heard: ttl / 2, open: open}
		s := newLeases(t, heard)
		s.join(memberstest.Node("node-1", 1))
		s.until(ttl, nil)
		if there := len(s.there()) == 1; there != open {
			t.Errorf("its stream is open: %v; after a lease in which that spoke it is there: %v", open, there)
		}
		s.until(ttl+ttl/2, nil)
		if got := s.there(); len(got) != 0 {
			t.Errorf("%v after a lease of silence", got)
		}
	}
}

// TestNamesake: a node that asks for the id of another one waits for a sign of life of that,
// and is refused after a heartbeat, with the holder's address. The log says once that it
// waits. Package proxy has the same with real streams.
func TestNamesake(t *testing.T) {
	for name, sign := range map[string]struct {
		give func(s *leases, heard *streams)
		want codes.Code
	}{
		"a heartbeat":         {func(s *leases, _ *streams) { s.renew("node-1", nil) }, codes.AlreadyExists},
		"the end of a lease":  {func(s *leases, _ *streams) { s.until(ttl, nil) }, codes.OK},
		"the end of its node": {func(_ *leases, heard *streams) { heard.breaks() }, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				heard := &streams{open: true, changed: make(chan struct{})}
				s := newLeases(t, heard)
				s.join(memberstest.Node("node-1", 1))
				other := memberstest.Node("node-1", 2)
				other.GrpcAddr = "127.0.0.1:2"
				answer := make(chan error, 1)
				go func() {
					_, err := s.Register(t.Context(), &proto.RegisterRequest{Node: other})
					answer <- err
				}()
				synctest.Wait()
				select {
				case err := <-answer:
					t.Fatalf("before a sign of life: %v", err)
				default:
				}
				sign.give(s, heard)
				err := clocktest.Receive(t, answer, "the answer")
				if status.Code(err) != sign.want || err != nil && !strings.Contains(err.Error(), "127.0.0.1:1") {
					t.Errorf("%v, want %v", err, sign.want)
				}
				if text := s.log.String(); strings.Count(text, "a second node asks for an id") != 1 || !strings.Contains(text, "node=node-1 first=127.0.0.1:1 second=127.0.0.1:2") {
					t.Errorf("the log says %q of the two", text)
				}
			})
		})
	}
}

// breaks has the streams break.
func (s *streams) breaks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	close(s.changed)
	s.changed = nil
}

// TestNoLeases: after the end nobody registers, and is told that it may try again.
func TestNoLeases(t *testing.T) {
	s := newLeases(t, noStreams{})
	s.join(memberstest.Node("node-1", 1))
	s.Close(errClosed)
	for _, id := range []string{"node-1", "node-2"} {
		if _, err := s.Register(t.Context(), &proto.RegisterRequest{Node: memberstest.Node(id, 2)}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errClosed.Error()) {
			t.Errorf("%s: %v, want UNAVAILABLE with the reason", id, err)
		}
	}
	if _, err := s.KeepAlive(t.Context(), &proto.KeepAliveRequest{Lease: s.held["node-1"]}); status.Code(err) != codes.NotFound {
		t.Errorf("a renewal after the end: %v", err)
	}
}

// TestLeasesOfNodesWithoutPartner: a node whose rails reach no node for the other leg gets no lease, and is told
// both sides' rails and the flag. It asks again, and two that wait have each other, in whatever order they came.
func TestLeasesOfNodesWithoutPartner(t *testing.T) {
	node := func(id string, role proto.Role, reach ...string) *proto.NodeInfo {
		n := prefill(id)
		n.Role, n.Rails, n.Reach = role, reach, reach
		n.GrpcAddr = id + ":1"
		return n
	}
	const p, d = proto.Role_ROLE_PREFILL, proto.Role_ROLE_DECODE
	s := newLeases(t, noStreams{})
	refuse := func(info *proto.NodeInfo, want ...string) {
		t.Helper()
		_, err := s.Register(t.Context(), &proto.RegisterRequest{Node: info})
		if status.Code(err) != codes.Aborted {
			t.Fatalf("%s: %v, want ABORTED", info.Id, err)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: no %q", err, w)
			}
		}
	}
	p1, d1 := node("p1", p, "tcp"), node("d1", d, "tcp", "shm of a/0")
	p2, d2 := node("p2", p, "shm of a/65534"), node("d2", d, "shm of a/65534")
	s.join(p1)
	s.join(d1)
	s.join(node("both", proto.Role_ROLE_NONDISAGG, "rdma")) // needs nobody
	refuse(d2, "node.rails: d2 has shm of a/65534", "the prefill nodes have tcp", "--rail")
	s.join(p2) // d2 will be back
	s.join(d2)
	if reply, err := s.Register(t.Context(), &proto.RegisterRequest{Node: node("p3", p, "tcp")}); err != nil || reply.Protocol != proto.Protocol {
		t.Errorf("%v, %v: want the proxy's protocol", reply, err)
	}
	// Who has stopped asking is nobody's partner.
	refuse(node("d3", d, "shm of b/0"))
	s.until(6*time.Second, s.held)
	refuse(node("p4", p, "shm of b/0"), "the decode nodes have shm of a/0, shm of a/65534, tcp")
}
