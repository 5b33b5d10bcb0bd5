package node

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"kvferry/handoff"
	"kvferry/internal/clock"
	"kvferry/internal/clock/clocktest"
	"kvferry/proto"
)

// A wakeTimer notes whether it was set for a time that its owner cannot mean.
type wakeTimer struct {
	clock.Timer
	t *testing.T
}

func (w *wakeTimer) Set(at time.Duration) {
	if at <= 0 {
		w.t.Errorf("woken for %v, which is nothing to wait for", at)
	}
	w.Timer.Set(at)
}

// TestIdleNodeSleeps: a loop that waits for nothing sets no timer, which would wake it at
// once and for ever.
func TestIdleNodeSleeps(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	n, err := New(Config{ID: "decode-1", Role: proto.Role_ROLE_DECODE, Proxy: s.proxy.daemon.GRPCAddr(), Profile: smallProfile(t), KVBlocks: 256, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	n.w.timer = &wakeTimer{n.w.timer, t}
	s.nodes["decode-1"] = run(n)
	s.ready()
	for i := range 2 { // one for each decode node
		if text, status := s.text(i, 100, 5); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
}

// TestRefusedLeg: a leg whose number is in use on its stream is refused, and nothing is
// remembered of it; end looks at what the executor was told of.
func TestRefusedLeg(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, nil, "prefill-0", "decode-0")
	defer s.end()
	x := s.stranger(t, "prefill-0")
	defer x.leave()
	x.ask(proto.Leg_LEG_PREFILL, handoff.Pull.Name, tokensOf(1, 40), 1)
	x.offer()
	x.next--
	x.ask(proto.Leg_LEG_PREFILL, handoff.Pull.Name, tokensOf(2, 40), 1)
	if m := clocktest.Receive(t, x.said, "the refusal"); len(m.Failed) != 1 || !strings.Contains(m.Failed[0].Message, "id 1 is in use") {
		t.Errorf("the node says %v", m)
	}
}

// TestNamed: a load names all adapters of as many slots as there are, and where their names are long
// no more than a heartbeat holds.
func TestNamed(t *testing.T) {
	var short, long []string
	for i := range 1024 {
		short, long = append(short, fmt.Sprintf("lora-%04d", i)), append(long, fmt.Sprintf("%0256d", i))
	}
	if got := len(named(short, slotBytes)); got != len(short) {
		t.Errorf("%d of %d adapters are named", got, len(short))
	}
	if size := protobuf.Size(&proto.Load{Adapters: named(long, slotBytes), RunningAdapters: named(long, askedBytes), WaitingAdapters: named(long, askedBytes)}); size == 0 || size > proto.MessageSize/2 {
		t.Errorf("long names take %d bytes of a heartbeat's %d", size, proto.MessageSize)
	}
}

// TestAdaptersAreTold: a load says whose requests have blocks, and whose wait for a slot.
func TestAdaptersAreTold(t *testing.T) {
	s := startNodes(t, handoff.Layerwise.Name, func(c *Config) { c.Profile = c.Profile.WithLoRA(1, 0, "") }, "prefill-0", "decode-0")
	defer s.end()
	x := s.stranger(t, "decode-0")
	defer x.leave()
	for i, name := range []string{"a", "b"} {
		x.submit(&proto.Submit{Leg: proto.Leg_LEG_DECODE, Handoff: handoff.Layerwise.Name, MaxTokens: 5, Adapter: name}, tokensOf(i, 40))
	}
	clocktest.Until(t, "a has blocks, and b waits", func() (ok bool) {
		s.onLoop(x.w, func() {
			l := x.w.load()
			ok = slices.Equal(l.RunningAdapters, []string{"a"}) && slices.Equal(l.WaitingAdapters, []string{"b"}) && l.AdapterSlots == 1
		})
		return ok
	})
}
