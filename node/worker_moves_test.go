package node

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/proto"
)

// TestLane: what is under way is bounded, goes in the order in which it came, and one
// move that is larger than the bound goes by itself.
func TestLane(t *testing.T) {
	const limit = 10
	n := &lane{}
	for i, bytes := range []int{4, 6, 1, 25, 0, 3} {
		n.waiting = append(n.waiting, &move{part: i, bytes: bytes, since: time.Duration(i)})
	}
	var under []*move
	goes := func(want ...int) {
		t.Helper()
		var got []int
		for v := n.next(limit); v != nil; v = n.next(limit) {
			got = append(got, v.part)
			under = append(under, v)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("parts %v go, want %v", got, want)
		}
	}
	end := func() { n.ended(under[0]); under = under[1:] }
	goes(0, 1) // 10 bytes
	end()
	goes(2) // 7
	end()
	goes()
	end()
	goes(3) // alone
	if out := n.remove(func(v *move) bool { return v.part == 4 }); len(out) != 1 || out[0].part != 4 {
		t.Errorf("removed %v", out)
	}
	end()
	goes(5)
	end()
	if n.moves != 0 || n.bytes != 0 || len(n.waiting) != 0 {
		t.Errorf("%+v is left", n)
	}
}

// TestGiveUp: behind a move that took too long ends what has waited for as long, and
// nothing else; and what waits ends at once when its request is closed.
func TestGiveUp(t *testing.T) {
	s := startNodes(t, handoff.Pull.Name, nil, "decode-0", "prefill-0")
	defer s.end()
	w := s.nodes["decode-0"].daemon.w
	l := &live{moves: 2}
	s.onLoop(w, func() {
		now := w.clk.Now()
		n := &lane{moves: 1, waiting: []*move{{l: l, since: now - w.cfg.TransferTimeout}, {l: l, since: now}}, bytes: w.underWay}
		n.waiting[1].bytes = 1
		w.giveUp(n, connector.ErrTransfer)
		if len(n.waiting) != 1 || l.moves != 1 {
			t.Errorf("%d wait, %d moves", len(n.waiting), l.moves)
		}
		l.remote = &proto.KVRef{GrpcAddr: "elsewhere"}
		w.lanes["elsewhere"] = n
		w.cancelMoves(l)
		if len(n.waiting) != 0 || l.moves != 0 {
			t.Errorf("closed, and %d wait, %d moves", len(n.waiting), l.moves)
		}
		delete(w.lanes, "elsewhere")
	})
}

// TestOneMoveAtATime: requests whose moves wait for each other are served as any, and
// those whose clients leave meanwhile leave nothing behind.
func TestOneMoveAtATime(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, nil, "prefill-0", "decode-0")
			defer s.end()
			want, _ := s.text(1, 100, 5)
			for _, n := range s.nodes {
				s.onLoop(n.daemon.w, func() { n.daemon.w.underWay = 1 })
			}
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					if got, status := s.text(1, 100, 5); status != http.StatusOK || got != want {
						t.Errorf("%d %q, want %q", status, got, want)
					}
				})
				all.Go(func() {
					ctx, leave := context.WithTimeout(t.Context(), 3*time.Millisecond)
					defer leave()
					if resp, err := s.complete(ctx, 2, 100, 5, true); err == nil {
						resp.Body.Close()
					}
				})
			}
			all.Wait()
		})
	}
}
