package rdma

import (
	"log/slog"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

var discard = slog.New(slog.DiscardHandler)

func TestContract(t *testing.T) {
	for _, c := range []struct {
		name         string
		pairs, depth int
	}{{"default", 0, 0}, {"three queue pairs", 3, 0}, {"shallow queues", 1, 5}, {"three shallow", 3, 5}} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric()
			transporttest.TestRail(t, func(tb testing.TB) transport.Rail {
				return f.rail(tb, func(cfg *Config) { cfg.QueuePairs, cfg.QueueDepth = c.pairs, c.depth })
			})
		})
	}
}
