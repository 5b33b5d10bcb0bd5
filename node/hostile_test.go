package node

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// TestReserveIsForMigrations: blocks beyond the prompt are reserved for a request that comes from
// another node. Any other leg that asks for them is refused.
func TestReserveIsForMigrations(t *testing.T) {
	s := startNodes(t, handoff.Push.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	d := s.stranger(t, "decode-0")
	defer d.leave()
	d.ask(proto.Leg_LEG_DECODE, handoff.Push.Name, tokensOf(1, 40), 4)
	kv := d.offer()
	for _, m := range []*proto.Submit{
		{Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Push.Name, MaxTokens: 1, Kv: kv},
		{Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Pull.Name, MaxTokens: 1},
		{Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Migration.Name, MaxTokens: 1, Kv: kv},
		{Leg: proto.Leg_LEG_PREFILL, MaxTokens: 1},
		{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.V0.Name, MaxTokens: 4, Kv: kv},
		{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.Layerwise.Name, MaxTokens: 4},
		{Leg: proto.Leg_LEG_FULL, MaxTokens: 4},
	} {
		x := s.stranger(t, map[proto.Leg]string{proto.Leg_LEG_PREFILL: "prefill-0", proto.Leg_LEG_DECODE: "decode-0", proto.Leg_LEG_FULL: "decode-0"}[m.Leg])
		m.Reserve = 1 << 20
		x.submit(m, tokensOf(1, 40))
		got := clocktest.Receive(t, x.said, "a refusal")
		if len(got.Failed) != 1 || got.Failed[0].Code != proto.FailCode_FAIL_INTERNAL || m.Handoff != handoff.Migration.Name && !strings.Contains(got.Failed[0].Message, "reserve is 1048576") {
			t.Errorf("%v of %q: the node says %v", m.Leg, m.Handoff, got)
		}
		x.leave()
	}
}

// TestContinueIsBounded: a request goes on with as many tokens as it has reserved blocks for. More
// are refused before anything is made of them.
func TestContinueIsBounded(t *testing.T) {
	s := startNodes(t, handoff.Push.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	d := s.stranger(t, "decode-0")
	defer d.leave()
	executor := d.w.exec.(*counting)
	for _, n := range []int{6, d.w.cfg.Profile.MaxModelLen + 10_000} {
		id := d.submit(&proto.Submit{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.Migration.Name, MaxTokens: 50, Reserve: 4}, tokensOf(1, 40))
		d.offer()
		most := executor.longest.Load()
		tokens := make([]byte, 0, 4*n)
		for range n {
			tokens = binary.LittleEndian.AppendUint32(tokens, 1)
		}
		if err := d.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Continue{Continue: &proto.Continue{Id: id, Tokens: tokens}}}); err != nil {
			t.Fatal(err)
		}
		got := clocktest.Receive(t, d.said, "a refusal")
		if len(got.Failed) != 1 || got.Failed[0].Code != proto.FailCode_FAIL_TRANSFER || executor.longest.Load() > most {
			t.Errorf("%d tokens: the node says %v, its executor has seen a prompt of %d", n, got, executor.longest.Load())
		}
	}
}

// hostile is any message that a proxy could send to a node.
func hostile(r *rand.Rand, kv *proto.KVRef) *proto.ToNode {
	some := func(n ...int) uint32 { return uint32(n[r.IntN(len(n))]) }
	tokens := func() []byte {
		b := make([]byte, int(some(0, 1, 3, 4, 8, 64, 160, 160, 164, 4096, 1<<14)))
		for i := 0; i+4 <= len(b); i += 4 {
			binary.LittleEndian.PutUint32(b[i:], some(1, 2, 3))
		}
		if r.IntN(8) == 0 && len(b) >= 4 {
			binary.LittleEndian.PutUint32(b, some(1<<31, 151936, 1<<32-1))
		}
		return b
	}
	ref := func() *proto.KVRef {
		switch r.IntN(6) {
		case 0:
			return nil
		case 1, 2:
			return kv
		}
		k := &proto.KVRef{NodeId: "x", GrpcAddr: "127.0.0.1:1", TransferId: r.Uint64(), Tokens: some(0, 1, 40, 41, 1<<31, 1<<32-1), FirstToken: some(0, 1<<32-1)}
		for i := range int(some(0, 1, 3, 3, 4, 700)) {
			k.Blocks = append(k.Blocks, &proto.Block{Index: uint32(i) + some(0, 0, 0, 1, 1<<28, 1<<32-1), Id: some(0, 1, 2, 255, 256, 1<<32-1), Generation: some(0, 1, 7)})
		}
		if r.IntN(3) > 0 {
			k.Segment = &proto.Segment{Name: "s", Length: r.Uint64(), Location: "cpu:0", Rails: []*proto.RailAddr{
				{Rail: "tcp/0", Addr: "127.0.0.1:1", Key: r.Uint64(), Rank: int32(some(0, 1, 1<<32-1))}, {Rail: "none", Addr: "?"},
			}}
		}
		return k
	}
	id := uint64(some(0, 1, 2, 3, 4, 5, 1<<32-1))
	switch r.IntN(12) {
	case 0:
		return &proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: id, BadKv: r.IntN(2) == 0}}}
	case 1:
		return &proto.ToNode{Kind: &proto.ToNode_Flush{Flush: &proto.Flush{Seq: r.Uint64()}}}
	case 2:
		return &proto.ToNode{Kind: &proto.ToNode_Direct{Direct: &proto.Direct{Id: id, Kv: ref()}}}
	case 3:
		return &proto.ToNode{Kind: &proto.ToNode_Migrate{Migrate: &proto.Migrate{Id: id, Kv: ref(), Known: some(0, 1, 40, 41, 1<<32-1)}}}
	case 4:
		return &proto.ToNode{Kind: &proto.ToNode_Resume{Resume: &proto.Resume{Id: id, BadKv: r.IntN(2) == 0}}}
	case 5:
		return &proto.ToNode{Kind: &proto.ToNode_Continue{Continue: &proto.Continue{Id: id, Tokens: tokens()}}}
	}
	hands := append(handoff.Names(), "", handoff.Migration.Name, "teleport")
	return &proto.ToNode{Kind: &proto.ToNode_Submit{Submit: &proto.Submit{
		Id: id, RequestId: "hostile", Leg: proto.Leg(some(0, 1, 2, 2, 3, 3, 9)), Handoff: hands[r.IntN(len(hands))], Prompt: tokens(), MaxTokens: some(0, 1, 4, 50, 1<<32-1),
		DeadlineMs: some(1, 20, 200), AgeUs: some(0, 1<<32-1), Prior: some(0, 1<<32-1), Kv: ref(), Variant: r.Uint64(), Adapter: []string{"", "", "a"}[r.IntN(3)],
		FirstWord: some(0, 0, 5, 1<<32-1), Words: some(0, 0, 3, 1<<32-1), Ahead: r.IntN(4) == 0, Reserve: some(0, 0, 4, 50, 1<<20, 1<<32-1), Movable: r.IntN(2) == 0, AdapterRank: some(0, 8, 1<<32-1),
	}}}
}

// TestHostileProxy: whatever comes over a node's stream, the node goes on, serves others meanwhile,
// and has nothing left of it once the stream has ended.
func TestHostileProxy(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 6
	}
	s := startNodes(t, handoff.Push.Name, nil, "prefill-0", "decode-0", "nondisagg-0")
	defer s.end()
	d := s.stranger(t, "decode-0")
	d.submit(&proto.Submit{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.Push.Name, MaxTokens: 4}, tokensOf(1, 40))
	kv := d.offer()
	d.leave()
	for seed := range uint64(rounds) {
		for _, name := range []string{"prefill-0", "decode-0", "nondisagg-0"} {
			r := rand.New(rand.NewPCG(seed, 30))
			x := s.stranger(t, name)
			for i := range 60 {
				if err := x.stream.Send(hostile(r, kv)); err != nil {
					t.Fatalf("seed %d, message %d: %s has ended the stream: %v", seed, i, name, err)
				}
			}
			began := time.Now()
			s.onLoop(x.w, func() {}) // it answers
			if took := time.Since(began); took > clocktest.Patience/2 {
				t.Errorf("seed %d: %s answered after %v", seed, name, took)
			}
			x.leave()
			s.until(fmt.Sprintf("%s to have nothing left of seed %d", name, seed), func() (clean bool) {
				s.onLoop(x.w, func() { clean = len(x.w.live) == 0 && x.w.core.Requests() == 0 && x.w.pool.Used() == 0 })
				return clean
			})
		}
	}
	if _, status := s.text(1, 40, 4); status != 200 {
		t.Errorf("after all that: %d", status)
	}
}
