package node

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/handoff/handofftest"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// spoil gives a node two rails, of which the second corrupts what it carries.
func spoil(id string) (set func(*Config), bad func() *transporttest.Corrupter) {
	var mu sync.Mutex
	var c *transporttest.Corrupter
	set = func(cfg *Config) {
		cfg.Rails = []string{DefaultRail, DefaultRail}
		cfg.Select = transport.Static // half of every transfer over each
		if cfg.ID != id {
			return
		}
		cfg.decorate = func(r transport.Rail) transport.Rail {
			if r.Name() != "tcp/1" {
				return r
			}
			mu.Lock()
			defer mu.Unlock()
			c = transporttest.Corrupt(r, 1)
			return c
		}
	}
	return set, func() *transporttest.Corrupter {
		mu.Lock()
		defer mu.Unlock()
		return c
	}
}

// TestSpoiltRail: a node whose moves arrive wrong over one of its two rails puts that
// rail to rest, and goes on with the other. Under layerwise it is the prefill node, which
// the proxy tells what the decode node has found.
func TestSpoiltRail(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			mover := "decode-0"
			if handofftest.DecodeFirst(hand) {
				mover = "prefill-0"
			}
			set, bad := spoil(mover)
			s := startNodes(t, hand, set, "prefill-0", "decode-0")
			defer s.end()
			var carried int64
			wrong, failed := uint64(0), 0
			rails := func() []transport.RailStats { return s.nodes[mover].daemon.kv.Rails() }
			const first, then = 6, 20
			for i := range first + then {
				if i == first {
					s.onLoop(s.nodes[mover].daemon.w, func() {}) // it has heard the last verdict
					carried, _ = bad().Carried()
					wrong = s.bad()
				}
				text, status := s.text(i, 200, 5)
				switch {
				case status == http.StatusOK:
				case i >= first || status != http.StatusBadGateway || !strings.Contains(text, connector.ErrContent.Error()):
					failed++
					t.Errorf("request %d: %d %s", i, status, text)
				case !strings.Contains(text, "decode leg on decode-0, KV from prefill-0: content"):
					t.Errorf("the error does not name both ends: %s", text)
				}
			}
			after, _ := bad().Carried()
			st := rails()
			t.Logf("of the last %d requests %d failed; the bad rail carried %d slices, then %d; %d blocks were bad, then %d; strikes %d and %d, rests %d and %d",
				then, failed, carried, after-carried, wrong, s.bad()-wrong, st[0].Strikes, st[1].Strikes, st[0].Rests, st[1].Rests)
			if wrong == 0 || st[1].Strikes < 3 || st[1].Rests == 0 {
				t.Errorf("the rail was not found: %+v", st[1])
			}
			if told := s.nodes[mover].daemon.railLoads()[1]; told.Strikes != uint64(st[1].Strikes) || told.Rests != uint64(st[1].Rests) {
				t.Errorf("the proxy is told %v", told)
			}
		})
	}
}

// TestBadKV: under layerwise a prefill node is told by the proxy that what it wrote is
// wrong, while the leg is there or when it has ended, and blames its rails.
func TestBadKV(t *testing.T) {
	set, _ := spoil("prefill-0")
	s := startNodes(t, handoff.Layerwise.Name, set, "prefill-0", "decode-0")
	defer s.end()
	p, d := s.stranger(t, "prefill-0"), s.stranger(t, "decode-0")
	defer p.leave()
	defer d.leave()
	strikes := func() int64 { return s.nodes["prefill-0"].daemon.kv.Rails()[1].Strikes }
	said := func(x *stranger, what string) *proto.FromNode {
		t.Helper()
		for {
			if m := clocktest.Receive(t, x.said, what); len(m.Failed)+len(m.Prefilled)+len(m.Reserved)+len(m.Finished) > 0 {
				return m
			}
		}
	}
	for i, seed := 0, 0; i < 3; i, seed = i+1, seed+1 { // strikes: then it rests, and what is written is right
		prompt := tokensOf(seed, 200)
		d.ask(proto.Leg_LEG_DECODE, handoff.Layerwise.Name, prompt, 5)
		kv := d.offer()
		leg := p.submit(&proto.Submit{Leg: proto.Leg_LEG_PREFILL, Handoff: handoff.Layerwise.Name, MaxTokens: 1, Kv: kv}, prompt)
		m := said(d, "the decode node's verdict")
		if len(m.Finished) == 1 { // the bad rail was not connected yet
			said(p, "the prefill node's end")
			i--
			continue
		}
		if len(m.Failed) != 1 || m.Failed[0].Code != proto.FailCode_FAIL_CONTENT || !m.Failed[0].Retryable {
			t.Fatalf("the decode node says %v", m)
		}
		if b := m.Failed[0].Breakdown; b.GetKvBlocksBad() == 0 {
			t.Errorf("the decode node accounts for no bad block: %v", b)
		}
		if strings.Contains(m.Failed[0].Message, "from :") {
			t.Errorf("the error names nobody: %s", m.Failed[0].Message)
		}
		if i%2 == 0 { // it has ended by now
			said(p, "the prefill node's end")
		}
		before := strikes()
		cancel := &proto.Cancel{Id: leg, Reason: m.Failed[0].Message, BadKv: true}
		for range 2 { // said twice counts once
			if err := p.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: cancel}}); err != nil {
				t.Fatal(err)
			}
		}
		s.until("the rail to be blamed", func() bool { return strikes() > before })
		s.onLoop(p.w, func() {})
		if got := strikes(); got != before+1 {
			t.Errorf("leg %d: %d strikes, %d before", i, got, before)
		}
		if i%2 == 1 { // it may not have ended when it was cancelled
			for len(p.said) > 0 {
				<-p.said
			}
		}
	}
	if st := s.nodes["prefill-0"].daemon.kv.Rails()[1]; st.Rests == 0 {
		t.Errorf("%+v", st)
	}
	// A leg that nobody complained of, and one that is not known, are nobody's fault.
	if err := p.stream.Send(&proto.ToNode{Kind: &proto.ToNode_Cancel{Cancel: &proto.Cancel{Id: 999, BadKv: true}}}); err != nil {
		t.Fatal(err)
	}
}
