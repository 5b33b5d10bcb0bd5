package proxy

import (
	"context"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/placement"
	"kvferry/proto"
)

// A moving request generates on a, which drains, and is asked of b. The test plays both nodes.
type moving struct {
	*testCluster
	a, b   *fakeNode
	say    map[*fakeNode]func(*proto.FromNode) // on each node's stream
	id     map[*fakeNode]uint64                // of its leg
	prompt []uint32                            // of b's leg
	tokens []uint32                            // of the answer
	body   chan string
	leave  context.CancelFunc
}

const moveTokens = 20

// newMoving has a request generate two tokens on a, and brings it to b.
func newMoving(t *testing.T) *moving {
	m := &moving{
		testCluster: newTestCluster(t, Config{
			Placement: placement.RoundRobin, Migration: placement.MigrationConfig{Policy: placement.Periodic, Interval: time.Hour},
		}),
		say: map[*fakeNode]func(*proto.FromNode){}, id: map[*fakeNode]uint64{}, body: make(chan string, 1),
		tokens: fakeTokens([]uint32{1, 2, 3}, moveTokens),
	}
	taken := make(chan struct{}, 16)
	hold := func(n *fakeNode, s *proto.Submit, send func(*proto.FromNode)) {
		m.say[n], m.id[n] = send, s.Id
		if s.Leg == proto.Leg_LEG_FULL {
			out := tokenMessage(s.Id, 0, m.tokens[:2]...)
			out.Load = &proto.Load{Seq: n.loads.Add(1), KvBlocksTotal: 1000, Draining: true}
			send(out)
		}
		taken <- struct{}{}
	}
	m.a = m.addNode("a", proto.Role_ROLE_NONDISAGG, hold)
	ctx, leave := context.WithCancel(t.Context())
	m.leave = leave
	request := m.request(ctx, "/v1/completions", `{"prompt":[1,2,3],"max_tokens":20,"stream":true,"stream_options":{"include_usage":true},"return_breakdown":true}`)
	go func() {
		resp, err := m.client.Do(request)
		if err != nil {
			m.body <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body) // its client may leave
		m.body <- string(body)
	}()
	clocktest.Receive(t, taken, "the request on a")
	m.b = m.addNode("b", proto.Role_ROLE_NONDISAGG, hold)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(clocktest.Patience)
	for {
		m.proxy.roster.Step(m.proxy.nodes.generating())
		select {
		case s := <-m.b.submits:
			clocktest.Receive(t, taken, "the request on b")
			m.prompt = promptOf(s)
			if s.Leg != proto.Leg_LEG_DECODE || s.Handoff != "migration" || !s.Movable || s.MaxTokens != moveTokens-2 || s.Reserve != moveTokens-2 || !slices.Equal(m.prompt, append([]uint32{1, 2, 3}, m.tokens[:2]...)) {
				t.Fatalf("b is asked for %v", s)
			}
			return m
		case <-tick.C:
		case <-limit:
			t.Fatal("nobody asks b")
		}
	}
}

// reserve has b say where its blocks are, and a be told.
func (m *moving) reserve() {
	m.t.Helper()
	kv := &proto.KVRef{NodeId: "b", GrpcAddr: m.b.info.GrpcAddr, TransferId: 77, Tokens: 7, Blocks: []*proto.Block{{}}}
	m.say[m.b](&proto.FromNode{Reserved: []*proto.Reserved{{Id: m.id[m.b], Kv: kv}}})
	to := clocktest.Receive(m.t, m.a.moves, "where to").GetMigrate()
	if to.GetId() != m.id[m.a] || to.GetKv().GetTransferId() != 77 || to.GetKnown() != 5 {
		m.t.Fatalf("a is told %v", to)
	}
}

// moved has a say that all is there, with two more tokens, and b be told of them.
func (m *moving) moved() {
	m.t.Helper()
	var ids []byte
	for _, id := range m.tokens[2:4] {
		ids = binary.LittleEndian.AppendUint32(ids, id)
	}
	out := tokenMessage(m.id[m.a], 2, m.tokens[2])
	out.Migrated = []*proto.Migrated{{Id: m.id[m.a], TransferId: 77, Tokens: ids, Breakdown: &proto.Breakdown{QueueUs: 9, MigratedBytes: 1000}}}
	m.say[m.a](out)
	to := clocktest.Receive(m.t, m.b.moves, "the tokens").GetContinue()
	if to.GetId() != m.id[m.b] || !slices.Equal(proto.TokenIDs(to.GetTokens()), m.tokens[2:4]) {
		m.t.Fatalf("b is told %v", to)
	}
}

// rest has a node say the tokens from one on, of a leg that began with the first.
func (m *moving) rest(n *fakeNode, from, first int) {
	out := tokenMessage(m.id[n], uint32(from-first), m.tokens[from:]...)
	out.Finished = []*proto.Finished{{Id: m.id[n], Reason: proto.FinishReason_FINISH_LENGTH, Breakdown: decodeBreakdown()}}
	m.say[n](out)
}

// answered checks that the client has the whole answer once.
func (m *moving) answered() string {
	m.t.Helper()
	body := clocktest.Receive(m.t, m.body, "the answer")
	if got, want := streamText(m.t, body), testTokenizer.Decode(m.tokens); got != want {
		m.t.Errorf("%q, want %q", got, want)
	}
	return body
}

// resumed checks that a is told to go on, and b to forget.
func (m *moving) resumed(badKV bool) {
	m.t.Helper()
	if to := clocktest.Receive(m.t, m.a.moves, "that it goes on").GetResume(); to.GetId() != m.id[m.a] || to.GetBadKv() != badKV {
		m.t.Errorf("a is told %v", to)
	}
}

func (m *moving) counted(series string) bool {
	_, text := m.get("/metrics")
	return strings.Contains(text, series+`{engine="0",model_name="test-model"} 1`)
}

// TestMoves: the request goes on on b, and a is let go with b's first token.
func TestMoves(t *testing.T) {
	m := newMoving(t)
	m.reserve()
	m.moved()
	m.rest(m.b, 4, 2)
	if c := clocktest.Receive(t, m.a.cancels, "the end on a"); c.Id != m.id[m.a] {
		t.Errorf("%v", c)
	}
	body := m.answered()
	for _, want := range []string{`"migrations":1`, `"migrated_bytes":1000`, `"migration_pause_us":`, `"decode_node":"b"`, `"retries":0`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	if !m.counted("kvferry:migrations_total") || m.counted("kvferry:migrations_failed_total") {
		t.Error("it is not counted as one that moved")
	}
}

// TestStays: whatever goes wrong before b generates, the request goes on at a.
func TestStays(t *testing.T) {
	for _, tc := range []struct {
		name  string
		badKV bool
		wrong func(*moving)
		from  int // the next token of a's
	}{
		{"b has no room", false, func(m *moving) {
			m.say[m.b](failMessage(m.id[m.b], proto.FailCode_FAIL_DRAINING, true))
		}, 2},
		{"b dies before", false, func(m *moving) { m.b.kill() }, 2},
		{"b dies in it", false, func(m *moving) { m.reserve(); m.b.kill() }, 2},
		{"b dies after it", false, func(m *moving) { m.reserve(); m.moved(); m.b.kill() }, 4},
		{"the KV is wrong", true, func(m *moving) {
			m.reserve()
			m.moved()
			m.say[m.b](failMessage(m.id[m.b], proto.FailCode_FAIL_CONTENT, true))
		}, 4},
		{"it cannot be copied", false, func(m *moving) {
			m.reserve()
			m.say[m.a](&proto.FromNode{Migrated: []*proto.Migrated{{Id: m.id[m.a], TransferId: 77, Message: "wire cut"}}})
			if c := clocktest.Receive(m.t, m.b.cancels, "the end on b"); c.Id != m.id[m.b] {
				m.t.Errorf("%v", c)
			}
		}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMoving(t)
			tc.wrong(m)
			m.resumed(tc.badKV)
			m.rest(m.a, tc.from, 0)
			body := m.answered()
			if strings.Contains(body, `"migrations"`) || !strings.Contains(body, `"retries":0`) {
				t.Errorf("%s", body)
			}
			if !m.counted("kvferry:migrations_failed_total") {
				t.Error("it is not counted as one that stayed")
			}
		})
	}
}

// TestMoverDies: where a dies before all is there, the request is attempted anew; after that b goes
// on without it.
func TestMoverDies(t *testing.T) {
	for _, after := range []bool{false, true} {
		m := newMoving(t)
		m.reserve()
		if after {
			m.moved()
		}
		there := m.id[m.b]
		m.a.kill()
		if after {
			m.rest(m.b, 4, 2)
			m.answered()
			continue
		}
		if c := clocktest.Receive(t, m.b.cancels, "the end on b"); c.Id != there {
			t.Errorf("%v", c)
		}
		if s := clocktest.Receive(t, m.b.submits, "the retry"); s.Leg != proto.Leg_LEG_FULL || s.Prior != 2 {
			t.Errorf("%v", s)
		}
		m.leave()
	}
}

// TestMovingClientLeaves: both nodes are told.
func TestMovingClientLeaves(t *testing.T) {
	m := newMoving(t)
	m.reserve()
	m.leave()
	for _, n := range []*fakeNode{m.a, m.b} {
		if c := clocktest.Receive(t, n.cancels, "the end"); c.Id != m.id[n] {
			t.Errorf("%v", c)
		}
	}
}
