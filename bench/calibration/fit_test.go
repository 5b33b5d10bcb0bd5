package calibration

import (
	"math"
	"slices"
	"testing"
	"time"

	"kvferry/bench/fit"
	"kvferry/engine"
)

// seriesOf is a series for a server with that profile, in virtual time.
func seriesOf(p *engine.Profile, rounds int) *Series {
	seqs, _ := p.Batch()
	return &Series{
		Target: Model(p), Vocab: p.Vocab, Longest: p.MaxModelLen, Batch: seqs, KV: p.Blocks() * p.KVGeometry.BlockTokens,
		Rounds: rounds, Patience: 4e9, Seed: 1, OnPoint: func(Point, int, int, time.Duration) {},
	}
}

// TestRecovers: of a server that is modelled, the costs are found again within 3 %, and those that
// it has not are left out.
func TestRecovers(t *testing.T) {
	for _, name := range engine.Profiles() {
		truth, err := engine.LoadProfile(name)
		if err != nil {
			t.Fatal(err)
		}
		if truth.Costs.PrefillTokenMS == 0 {
			continue // zero, itl10: of no GPU
		}
		t.Run(name, func(t *testing.T) {
			warm := *truth
			warm.Costs.ColdMS = 0 // a live server is cold once, and a modelled one at each point
			m, err := seriesOf(&warm, 1).Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f, err := Fit(t.Context(), truth, m)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d points\n%v", len(m.Points), f)
			for _, c := range slices.Concat(even, serial) {
				want, err := fit.Read(truth, "costs."+c.field)
				if err != nil {
					t.Fatal(err)
				}
				got, err := fit.Read(f.Profile, "costs."+c.field)
				if err != nil {
					t.Fatal(err)
				}
				if want != 0 || got != 0 {
					t.Logf("%-22s %10.5g of %10.5g  %+.2f %%", c.field, got, want, 100*(got/want-1))
				}
				if math.Abs(got-want) > 0.03*want {
					t.Errorf("%s is %v, want %v", c.field, got, want)
				}
			}
		})
	}
}
