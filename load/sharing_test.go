package load

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"kvferry/kvcache"
)

// hitRate is the share of all prompt tokens that an ideal cache of blocks of that size has
// when they come: one that keeps everything, and computes the last token of each prompt.
func hitRate(all List, block int) float64 {
	cached := map[kvcache.Hash]bool{}
	tokens, hits := 0, 0
	for _, r := range all {
		tokens += len(r.Prompt)
		hit := true
		for i, h := range kvcache.PrefixHashes(kvcache.Hash{}, r.Prompt, block) {
			if hit = hit && cached[h] && (i+1)*block < len(r.Prompt); hit {
				hits += block
			}
			cached[h] = true
		}
	}
	return float64(hits) / float64(tokens)
}

// TestSharing: an ideal cache has the wanted share of the tokens, whatever the lengths, the
// blocks and the number of beginnings; one of larger blocks has less.
func TestSharing(t *testing.T) {
	all := []Sharing{{0.6, 16, 10}, {0.35, 512, 3}, {0.6, 16, 1}, {0.1, 16, 4}, {0.9, 64, 4}, {0.5, 1, 2}, {0, 16, 1}}
	if testing.Short() {
		all = all[:2]
	}
	for _, c := range all {
		for _, ratio := range []float64{0, 0.4} {
			s := spec(600, Spec{Sharing: c, RangeRatio: ratio})
			s.InputLen, s.Vocab = 1100, 50000
			all, _ := collected(t, s)
			total := 0
			for _, r := range all {
				total += len(r.Prompt)
			}
			if got := hitRate(all, c.BlockSize); math.Abs(got-c.HitRate) > 0.01 {
				t.Errorf("%+v, lengths +-%v: an ideal cache hits %.4f of %d tokens", c, ratio, got, total)
			}
			if got := hitRate(all, 1024); c.BlockSize < 512 && c.HitRate < 0.9 && got >= c.HitRate && c.HitRate > 0 {
				t.Errorf("%+v: blocks of 1024 hit %.4f", c, got)
			}
			if mean := float64(total) / 600; math.Abs(mean-1100) > 40 {
				t.Errorf("%+v: prompts of %.0f tokens", c, mean)
			}
		}
	}
}

func TestSharingFaults(t *testing.T) {
	for want, c := range map[string]Sharing{
		"Sharing.HitRate: 1: use 0 to below 1":                     {1, 16, 1},
		"Sharing.HitRate: 0.95: use up to 0.800: that is how much": {0.95, 16, 1},
		"Sharing.HitRate: 0.5: use up to 0.000":                    {0.5, 20, 1},
		"Sharing.BlockSize: 0: use 1 to":                           {0.5, 0, 1},
		"Sharing.Groups: 0: use 1 to":                              {0.5, 16, 0},
		"PrefixLen: 5: leave it out":                               {0.5, 16, 1},
	} {
		s := spec(1, Spec{Sharing: c})
		s.InputLen, s.PrefixLen = 20, 5
		if err := s.Validate(); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%+v: %v: want %q in it", c, err, want)
		}
	}
}
