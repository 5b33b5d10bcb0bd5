package node

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"kvferry/handoff"
)

// TestOneMoveAtATime: requests whose moves wait for each other are served as any, and
// those whose clients leave meanwhile leave nothing behind.
func TestOneMoveAtATime(t *testing.T) {
	for _, hand := range handoff.Names() {
		t.Run(hand, func(t *testing.T) {
			s := startNodes(t, hand, func(c *Config) { c.underWay = 1 }, "prefill-0", "decode-0")
			defer s.end()
			want, _ := s.text(1, 100, 5)
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
