// Package memberstest is what every [members.Membership] must do. Its tests go by what a
// watcher is told and wait for nothing else, so that a membership behind a network can run
// them as well as one in memory.
package memberstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/proxy/members"
)

// A Subject is a membership without nodes, and what the tests have nodes do. A node is
// named by its id; one that is gone is not named again until it has joined.
type Subject struct {
	members.Membership

	Join   func(*proto.NodeInfo)          // takes the place of one with its id and address
	Report func(id string, l *proto.Load) // a heartbeat; nil if the membership has none
	Drain  func(id string)                // it takes nothing new; nil if the membership cannot tell
	Leave  func(id string)                // in good order
	Fail   func(id string) (cause error)  // it is gone without a word; returns what watchers are to be told
	Close  func()                         // the membership ends
}

// Test runs the tests, each with a subject of its own. in runs each of them: synctest.Test
// for a membership that needs nothing outside of a bubble, or a function that calls its
// argument.
func Test(t *testing.T, in func(*testing.T, func(*testing.T)), make func(*testing.T) Subject) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Subject)
	}{
		{"a watcher that comes late sees all that are there", testLate},
		{"what happens to a node is told in order", testOrder},
		{"what happens to several nodes is told in order", testSeveral},
		{"a node that fails is gone, with the reason", testFail},
		{"a successor joins after its predecessor is gone", testSuccessor},
		{"a slow watcher is told what counts", testSlow},
		{"many watchers are each told all", testMany},
		{"a watcher can stop at any change", testStop},
		{"the context ends a watch", testContext},
		{"the end of the membership ends every watch", testClose},
		{"the end of a membership without nodes ends a watch", testCloseEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			in(t, func(t *testing.T) { c.test(t, make(t)) })
		})
	}
}

// Node is a node for a Membership to tell of, the instance-th of that id. It says as much of
// itself as the rules of a cluster ask for.
func Node(id string, instance uint64) *proto.NodeInfo {
	return &proto.NodeInfo{
		Protocol: proto.Protocol,
		Id:       id, Instance: instance, Role: proto.Role_ROLE_NONDISAGG, GrpcAddr: "127.0.0.1:1", Model: "m",
		BlockTokens: 16, MaxModelLen: 1000, Vocab: 1000, Profile: "p", ProfileFingerprint: "f",
	}
}

// A reader is one watcher, and what it knows.
type reader struct {
	t       *testing.T
	changes chan members.Change
	stop    context.CancelFunc
	there   map[string]members.Node
	gone    map[uint64]bool // incarnations
}

// watch starts a watcher. It is told nothing until it is read.
func watch(t *testing.T, s Subject) *reader {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	r := &reader{t: t, changes: make(chan members.Change), stop: stop, there: map[string]members.Node{}, gone: map[uint64]bool{}}
	go func() {
		defer close(r.changes)
		for c := range s.Watch(ctx) {
			select {
			case r.changes <- c:
			case <-ctx.Done():
				return
			}
		}
	}()
	return r
}

// next reads a change and holds it to what was told before.
func (r *reader) next() (c members.Change, ok bool) {
	r.t.Helper()
	c, ok = receive(r.t, r.changes)
	if !ok {
		return c, false
	}
	id, in := c.Node.Info.GetId(), c.Node.Incarnation
	known, there := r.there[id]
	switch {
	case in == 0:
		r.t.Fatalf("%s %s: incarnation 0", id, c.Kind)
	case r.gone[in]:
		r.t.Fatalf("%s %s after it was gone", id, c.Kind)
	case c.Kind == members.Joined && there:
		r.t.Fatalf("%s joined while it is there", id)
	case c.Kind != members.Joined && (!there || known.Incarnation != in):
		r.t.Fatalf("%s %s, and never joined", id, c.Kind)
	case c.Kind == members.Gone && c.Cause == nil:
		r.t.Fatalf("%s is gone without a cause", id)
	case c.Kind != members.Gone && c.Cause != nil:
		r.t.Fatalf("%s %s with a cause: %v", id, c.Kind, c.Cause)
	case c.Kind != members.Joined && known.Draining && !c.Node.Draining:
		r.t.Fatalf("%s drains no more", id)
	}
	if c.Kind == members.Gone {
		delete(r.there, id)
		r.gone[in] = true
	} else {
		r.there[id] = c.Node
	}
	return c, true
}

// receive is clocktest.Receive that can also tell the end of the channel.
func receive(t *testing.T, changes <-chan members.Change) (c members.Change, ok bool) {
	t.Helper()
	limit, cancel := context.WithTimeout(t.Context(), clocktest.Patience)
	defer cancel()
	select {
	case c, ok = <-changes:
	case <-limit.Done():
		t.Fatalf("told nothing for %v", clocktest.Patience)
	}
	return c, ok
}

// until reads up to a node's change of a kind, and returns it.
func (r *reader) until(id string, kind members.Kind) members.Change {
	r.t.Helper()
	for {
		c, ok := r.next()
		if !ok {
			r.t.Fatalf("the watch ended before %s %s", id, kind)
		}
		if c.Node.Info.Id == id && c.Kind == kind {
			return c
		}
	}
}

// settles reads until there are just these nodes, of these instances.
func (r *reader) settles(want map[string]uint64) {
	r.t.Helper()
	there := func() bool {
		for id, instance := range want {
			if n, ok := r.there[id]; !ok || n.Info.GetInstance() != instance {
				return false
			}
		}
		return len(r.there) == len(want)
	}
	for !there() {
		if _, ok := r.next(); !ok {
			r.t.Fatalf("the watch ended with %v there, want %v", r.there, want)
		}
	}
}

// want reads changes, as "node-1 joined", and nothing else.
func (r *reader) want(changes ...string) {
	r.t.Helper()
	for _, want := range changes {
		c, ok := r.next()
		if got := fmt.Sprintf("%s %s", c.Node.Info.GetId(), c.Kind); !ok || got != want {
			r.t.Fatalf("told that %s, want %s", got, want)
		}
	}
}

func testLate(t *testing.T, s Subject) {
	for _, id := range []string{"node-2", "node-3", "node-1"} {
		s.Join(Node(id, 1))
	}
	s.Leave("node-3")
	if s.Report != nil {
		s.Report("node-2", &proto.Load{Seq: 1, Running: 7})
	}
	r := watch(t, s)
	defer r.stop()
	r.settles(map[string]uint64{"node-1": 1, "node-2": 1})
	s.Join(Node("last", 1))
	r.until("last", members.Joined)
	if len(r.there) != 3 || len(r.gone) != 0 {
		t.Errorf("there are %v and gone %v, want node-1, node-2 and last, and nobody gone", r.there, r.gone)
	}
	if got := r.there["node-2"]; s.Report != nil && got.Load.GetRunning() != 7 {
		t.Errorf("node-2 is there with %v, want its last load", got)
	}
}

func testOrder(t *testing.T, s Subject) {
	r := watch(t, s)
	defer r.stop()
	info := Node("node-1", 5)
	s.Join(info)
	c := r.until("node-1", members.Joined)
	if got := c.Node.Info; got.GrpcAddr != info.GrpcAddr || got.Role != info.Role || got.Instance != 5 || got.Model != info.Model || c.Node.Draining {
		t.Errorf("joined as %v, want %v", c.Node, info)
	}
	if s.Report != nil {
		s.Report("node-1", &proto.Load{Seq: 1, Running: 3})
		if c := r.until("node-1", members.Changed); c.Node.Load.GetRunning() != 3 || c.Node.Draining {
			t.Errorf("changed to %v, want 3 running", c.Node)
		}
	}
	if s.Drain != nil {
		s.Drain("node-1")
		if c := r.until("node-1", members.Changed); !c.Node.Draining {
			t.Errorf("changed to %v, want one that drains", c.Node)
		}
		if s.Report != nil { // of before it was told to
			s.Report("node-1", &proto.Load{Seq: 2})
			r.until("node-1", members.Changed)
		}
	}
	s.Leave("node-1")
	if c := r.until("node-1", members.Gone); !errors.Is(c.Cause, members.ErrLeft) || c.Node.Info.GetInstance() != 5 || c.Node.Draining != (s.Drain != nil) {
		t.Errorf("gone as %v: %v, want %v", c.Node, c.Cause, members.ErrLeft)
	}
}

func testSeveral(t *testing.T, s Subject) {
	s.Join(Node("first", 1))
	r := watch(t, s)
	defer r.stop()
	r.until("first", members.Joined)
	for range 3 {
		s.Join(Node("node-1", 1))
		s.Join(Node("node-2", 1))
		r.want("node-1 joined", "node-2 joined")
		s.Leave("node-1")
		s.Join(Node("node-3", 1))
		s.Leave("node-3")
		s.Leave("node-2")
		r.want("node-1 gone")
		r.until("node-2", members.Gone) // node-3 may have been told of
	}
}

func testFail(t *testing.T, s Subject) {
	r := watch(t, s)
	defer r.stop()
	s.Join(Node("node-1", 1))
	s.Join(Node("node-2", 1))
	r.settles(map[string]uint64{"node-1": 1, "node-2": 1})
	want := s.Fail("node-1")
	if c := r.until("node-1", members.Gone); want == nil || !errors.Is(c.Cause, want) || errors.Is(c.Cause, members.ErrLeft) {
		t.Errorf("gone: %v, want %v, which is not that it left", c.Cause, want)
	}
	if _, there := r.there["node-2"]; !there {
		t.Error("node-2 is gone with it")
	}
}

func testSuccessor(t *testing.T, s Subject) {
	r := watch(t, s)
	defer r.stop()
	s.Join(Node("node-1", 1))
	first := r.until("node-1", members.Joined)
	s.Join(Node("node-1", 2))
	if c := r.until("node-1", members.Gone); !errors.Is(c.Cause, members.ErrReplaced) || c.Node.Incarnation != first.Node.Incarnation {
		t.Errorf("gone %v: %v, want the first, %v", c.Node, c.Cause, members.ErrReplaced)
	}
	if c := r.until("node-1", members.Joined); c.Node.Incarnation == first.Node.Incarnation || c.Node.Info.GetInstance() != 2 {
		t.Errorf("joined as %v, want the second", c.Node)
	}
	s.Leave("node-1")
	r.until("node-1", members.Gone)
	s.Join(Node("node-1", 2)) // the same instance, again
	r.until("node-1", members.Joined)
}

// testSlow has a thousand things happen to nodes that a watcher knows, and to others, while
// it does not read.
func testSlow(t *testing.T, s Subject) {
	r := watch(t, s)
	defer r.stop()
	for _, id := range []string{"stays", "leaves", "comes back", "fails"} {
		s.Join(Node(id, 1))
	}
	r.settles(map[string]uint64{"stays": 1, "leaves": 1, "comes back": 1, "fails": 1})
	before := r.there["comes back"].Incarnation
	for i := range uint64(250) {
		if s.Report != nil {
			s.Report("stays", &proto.Load{Seq: i + 1, Running: uint32(i)})
		}
		s.Leave("comes back")
		s.Join(Node("passes", i))
		s.Leave("passes")
		s.Join(Node("comes back", i+2))
	}
	if s.Report != nil { // of one that is told to be gone next
		s.Report("leaves", &proto.Load{Seq: 1})
	}
	s.Leave("leaves")
	cause := s.Fail("fails")
	s.Join(Node("last", 1))
	told, failed := 0, error(nil)
	for {
		c, ok := r.next()
		if !ok {
			t.Fatal("the watch ended")
		}
		told++
		if c.Node.Info.Id == "fails" && c.Kind == members.Gone {
			failed = c.Cause
		}
		if c.Node.Info.Id == "last" {
			break
		}
	}
	if !errors.Is(failed, cause) {
		t.Errorf("fails is gone: %v, want %v", failed, cause)
	}
	if now := r.there["comes back"]; len(r.there) != 3 || now.Incarnation == before || now.Info.GetInstance() != 251 || !r.gone[before] {
		t.Errorf("there are %v, want stays, last, and another one that came back", r.there)
	}
	if load := r.there["stays"].Load; s.Report != nil && load.GetRunning() != 249 {
		t.Errorf("stays has %v, want its last load", load)
	}
	// One change was on its way. Two may wait of each of the five that it was told of.
	if told > 1+2*5 {
		t.Errorf("told %d changes at once: they waited for it", told)
	}
}

// testMany has watchers come and go while nodes do. All see the same in the end.
func testMany(t *testing.T, s Subject) {
	rng := rand.New(rand.NewPCG(1, 4))
	var readers []*reader
	there := map[string]uint64{} // instances
	for i := range uint64(200) {
		if i%20 == 0 {
			r := watch(t, s)
			defer r.stop()
			readers = append(readers, r)
		}
		if i%30 == 29 {
			readers[rng.IntN(len(readers))].next()
		}
		id := fmt.Sprintf("node-%d", rng.IntN(5))
		if _, ok := there[id]; ok && rng.IntN(2) == 0 {
			s.Leave(id)
			delete(there, id)
			continue
		}
		s.Join(Node(id, i))
		there[id] = i
	}
	s.Join(Node("last", 1))
	there["last"] = 1
	for _, r := range readers {
		r.settles(there)
	}
}

func testStop(t *testing.T, s Subject) {
	s.Join(Node("node-1", 1))
	s.Join(Node("node-2", 1))
	for range s.Watch(t.Context()) {
		break
	}
	s.Leave("node-1") // nobody is in the way
}

func testContext(t *testing.T, s Subject) {
	r := watch(t, s)
	s.Join(Node("node-1", 1))
	r.until("node-1", members.Joined)
	r.stop()
	for { // one may have been on its way
		if _, ok := receive(t, r.changes); !ok {
			break
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for c := range s.Watch(ended) {
		t.Errorf("told that %v by a watch that had ended", c)
	}
}

func testClose(t *testing.T, s Subject) {
	quick, slow := watch(t, s), watch(t, s)
	s.Join(Node("node-1", 1))
	s.Join(Node("node-2", 1))
	for _, r := range []*reader{quick, slow} {
		defer r.stop()
		r.settles(map[string]uint64{"node-1": 1, "node-2": 1})
	}
	s.Leave("node-2")
	quick.until("node-2", members.Gone)
	s.Close()
	for _, r := range []*reader{quick, slow} {
		for ok := true; ok; {
			_, ok = r.next()
		}
		if len(r.there) != 0 || len(r.gone) != 2 {
			t.Errorf("there are %v after the end", r.there)
		}
	}
	for c := range s.Watch(t.Context()) {
		t.Errorf("told that %v after the end", c)
	}
}

func testCloseEmpty(t *testing.T, s Subject) {
	r := watch(t, s)
	defer r.stop()
	s.Join(Node("node-1", 1))
	s.Leave("node-1")
	s.Join(Node("node-2", 1))
	r.until("node-2", members.Joined)
	s.Leave("node-2")
	r.until("node-2", members.Gone)
	s.Close()
	if c, ok := receive(t, r.changes); ok {
		t.Errorf("told that %v at the end", c)
	}
}
