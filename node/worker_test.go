package node

import (
	"log/slog"
	"net/http"
	"testing"
	"time"

	"kvferry/clock"
	"kvferry/handoff"
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
