package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"

	"kvferry/handoff"
	"kvferry/internal/clock/clocktest"
	"kvferry/transport/connection"
	"kvferry/transport/rails"
)

// TestCrowd: strangers that connect to a node's rail, say hello and nothing more, as
// many as it serves, do not keep its transfers from going through.
func TestCrowd(t *testing.T) {
	const fewer = 512
	for rail, conns := range map[string]int{fmt.Sprintf("%s?%s=%d", DefaultRail, connection.OptionMax, fewer): fewer, "cma": connection.DefaultConns} {
		t.Run(rail, func(t *testing.T) {
			const requests = 3
			s := startNodes(t, handoff.Layerwise.Name, withRail(t, rail), "prefill-0", "decode-0")
			defer s.end()
			strangers, err := rails.Open(rail, rails.Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer strangers.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 6*clocktest.Patience)
			defer cancel()
			at := s.nodes["decode-0"].daemon.kv.Rails()[0].Addr
			for i := range conns {
				if _, err := strangers.Dial(ctx, at); err != nil {
					t.Fatalf("connection %d: %v", i, err)
				}
			}
			well := 0
			for i := range requests {
				if text, status := s.text(i, 100, 5); status == http.StatusOK {
					well++
				} else {
					t.Log(status, text)
				}
			}
			if t.Logf("%d of %d requests beside %d strangers", well, requests, conns); well != requests {
				t.Error("strangers keep others out")
			}
		})
	}
}
