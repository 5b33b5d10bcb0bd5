package connector

import (
	"math/rand/v2"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/kvcache"
)

// TestBreakdown: under load, the parts of each request's breakdown, of both legs
// together, add up to its time to the first token; under layerwise, where the
// prefill node streams that one, to the second.
func TestBreakdown(t *testing.T) {
	prof, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"nondisagg", "tcp", "pull", "layerwise"} {
		t.Run(set, func(t *testing.T) {
			w := &world{tokens: map[uint64][]time.Duration{}, tb: t}
			rng := rand.New(rand.NewPCG(1, 0))
			prompts := make([][]kvcache.Token, 200)
			for i := range prompts {
				prompts[i] = make([]kvcache.Token, 200+rng.IntN(100))
				for j := range prompts[i] {
					prompts[i][j] = rng.Uint32N(uint32(prof.Vocab))
				}
			}
			cl := newCluster(w, prof, set, prompts)
			arrivals := publishedArrivals(8)
			for i, at := range arrivals {
				w.at(at, func() { cl.submit(i) })
			}
			w.run()
			bad := 0
			for i, at := range arrivals {
				id := uint64(i + 1)
				want := w.tokens[id][0] - at
				if set == "layerwise" {
					want = w.tokens[id][1] - at
				}
				var sum time.Duration
				for _, h := range cl.hosts {
					b := h.legs[id]
					sum += b.Proxy + b.Queue + b.Prefill + b.Post + b.Wire + b.Land + b.FirstDecode
				}
				if d := sum - want; d.Abs() > 10*time.Microsecond {
					if bad++; bad <= 5 {
						t.Errorf("request %d: %v of %v is accounted for", id, sum, want)
						for _, h := range cl.hosts {
							t.Logf("%+v", h.legs[id])
						}
					}
				}
			}
			if bad > 0 {
				t.Errorf("%d of %d requests", bad, len(arrivals))
			}
		})
	}
}
