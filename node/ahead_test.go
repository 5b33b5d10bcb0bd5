package node

import (
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// direct tells a leg where its KV goes.
func (x *stranger) direct(id uint64, kv *proto.KVRef) {
	x.t.Helper()
	if err := x.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Direct{Direct: &proto.Direct{Id: id, Kv: kv}}}); err != nil {
		x.t.Fatal(err)
	}
}

// TestAhead: a prompt that comes ahead is written to where the Direct says, and what is written is
// right. What says it again, or of a leg that did not come ahead, is not looked at.
func TestAhead(t *testing.T) {
	for _, h := range []handoff.Handoff{handoff.Layerwise, handoff.Push} {
		t.Run(h.Name, func(t *testing.T) {
			s := startNodes(t, h.Name, nil, "prefill-0", "decode-0")
			defer s.end()
			p, d := s.stranger(t, "prefill-0"), s.stranger(t, "decode-0")
			defer p.leave()
			defer d.leave()
			prompt := tokensOf(1, 100)
			id := p.submit(&proto.Submit{Leg: proto.Leg_LEG_PREFILL, Handoff: h.Name, MaxTokens: 1, Ahead: true}, prompt)
			s.until("the prompt to be computed", func() (held bool) {
				s.onLoop(p.w, func() { held = p.w.core.Load().WaitingTokens == 0 && p.w.pool.Used() > 0 && !p.w.core.Computing() })
				return held
			})
			d.ask(proto.Leg_LEG_DECODE, h.Name, prompt, 3)
			kv := d.offer()
			p.direct(id, kv)
			p.direct(id, kv)
			p.direct(id+7, kv)
			ends := clocktest.Receive(t, d.said, "the answer")
			for len(ends.Finished)+len(ends.Failed) == 0 {
				ends = clocktest.Receive(t, d.said, "the answer's end")
			}
			if len(ends.Failed) > 0 || ends.Finished[0].Breakdown.KvBlocksChecked == 0 || ends.Finished[0].Breakdown.KvBlocksBad > 0 {
				t.Errorf("it ends with %v", ends)
			}
			said := clocktest.Receive(t, p.said, "the first token")
			for len(said.Prefilled)+len(said.Failed) == 0 {
				said = clocktest.Receive(t, p.said, "the end of the prefill leg")
			}
			if len(said.Failed) > 0 {
				t.Errorf("it ends with %v", said)
			}
			p.w.mustForget(t, s)
		})
	}
}

// mustForget fails the test if a session is left with legs that wait to be told.
func (w *worker) mustForget(t *testing.T, s *nodes) {
	t.Helper()
	s.onLoop(w, func() {
		for x := range w.sessions {
			for id := range x.undirected.Range {
				t.Errorf("leg %d waits for a Direct", id)
			}
		}
	})
}

// TestAheadInVain: a leg that nobody tells fails, and is no failed transfer; one that is cancelled,
// or told what cannot be, ends; and none leaves a block or is remembered.
func TestAheadInVain(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	p := s.stranger(t, "prefill-0")
	defer p.leave()
	ahead := func() uint64 {
		return p.submit(&proto.Submit{Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Layerwise.Name, MaxTokens: 1, Ahead: true}, tokensOf(2, 100))
	}
	fails := func(code proto.FailCode, retryable bool) {
		t.Helper()
		m := clocktest.Receive(t, p.said, "the end of the leg")
		if len(m.Failed) != 1 || m.Failed[0].Code != code || m.Failed[0].Retryable != retryable || len(m.Tokens) > 0 {
			t.Errorf("the node says %v, want %v", m, code)
		}
	}
	ahead()
	fails(proto.FailCode_FAIL_UNDIRECTED, true)
	p.direct(ahead(), &proto.KVRef{NodeId: "decode-0", Blocks: make([]*proto.Block, 1<<12)})
	fails(proto.FailCode_FAIL_TRANSFER, true)
	p.direct(ahead(), &proto.KVRef{NodeId: "decode-0", Segment: &proto.Segment{Name: "x", Length: 1}})
	fails(proto.FailCode_FAIL_NO_PATH, true)
	id := ahead()
	if err := p.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: id}}}); err != nil {
		t.Fatal(err)
	}
	s.until("the blocks to be free", func() (free bool) {
		s.onLoop(p.w, func() { free = len(p.w.live) == 0 && p.w.pool.Used() == 0 })
		return free
	})
	p.w.mustForget(t, s)
	s.onLoop(p.w, func() {
		if got := p.w.core.Totals(); got.Failed != 0 {
			t.Errorf("%+v: want no transfer that failed", got)
		}
	})
}
