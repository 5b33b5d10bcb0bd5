package node

import (
	"net/http"
	"testing"

	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/transport/pacing"
)

// TestTiers: prompts take turns on a prefill node whose pool holds one of them. What has left the
// pool is loaded from host memory, or from the disk, and what either node reads of it is right, byte for byte,
// by every hand-off, over a modelled NIC that shares the bus or the network as it is.
func TestTiers(t *testing.T) {
	for _, hand := range handoff.Names() {
		for _, link := range []*pacing.Link{nil, {Name: "test", BytesPerSecond: 1e9}} {
			name := hand + "/native"
			if link != nil {
				name = hand + "/paced"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				block := float64(smallProfile(t).KVGeometry.BlockBytes()) / (1 << 30) // GiB
				s := startNodes(t, hand, func(c *Config) {
					c.Link, c.PrefixCaching, c.TokensFromKV = link, true, true
					if c.ID == "prefill-0" {
						c.KVBlocks, c.Tiers = 10, kvcache.TierConfig{HostGiB: 12.5 * block, DiskGiB: 100 * block, PCIe: 1, Disk: 0.5}
					}
				}, "prefill-0", "decode-0")
				defer s.end()
				for round := range 3 {
					for i := range 3 {
						got, status := s.text(i+1, 100, 5)
						if want := answerText(smallProfile(t).KVGeometry, i+1, 100, 5); status != http.StatusOK || got != want {
							t.Errorf("round %d: %d %q, want %q", round, status, got, want)
						}
					}
				}
				if bad := s.bad(); bad > 0 {
					t.Errorf("%d blocks were wrong", bad)
				}
				var stats kvcache.TierStats
				w := s.nodes["prefill-0"].daemon.w
				s.onLoop(w, func() { stats = w.tiers.Stats() })
				if stats.DiskHits == 0 || stats.Loaded == 0 || stats.Read == 0 || stats.Stored < 18 || stats.Written < 18 {
					t.Errorf("%+v", stats)
				}
			})
		}
	}
}
