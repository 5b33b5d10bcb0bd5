package eos

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"kvferry/kvcache"
)

func draws(l Lengths, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = l.Draw([]kvcache.Token{kvcache.Token(i), 7, 1}, 0)
	}
	return out
}

// TestDrawIsPinned: lengths must not change from version to version, or a run would not be
// repeated by its seed.
func TestDrawIsPinned(t *testing.T) {
	got := fmt.Sprint(draws(Default, 8), draws(Lengths{Median: 23.4, Sigma: 1.98, Max: 751}, 8), Default.Draw(nil, 0), Default.Draw([]kvcache.Token{1}, 1))
	const want = "[556 1028 269 173 146 231 174 520] [218 738 52 22 15 38 22 191] 61 353"
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestDistribution holds draws to the log-normal distribution that they are of.
func TestDistribution(t *testing.T) {
	l := Lengths{Median: 180, Sigma: 1}
	got := draws(l, 20000)
	slices.Sort(got)
	// Quantiles of a log-normal: median x exp(sigma z). The sample's 20,000 draws have them
	// within 5 %: the standard error at P90 is 1.2 %.
	for _, q := range []struct{ p, z float64 }{{0.1, -1.2816}, {0.25, -0.6745}, {0.5, 0}, {0.75, 0.6745}, {0.9, 1.2816}} {
		have, want := float64(got[int(q.p*float64(len(got)))]), 180*math.Exp(q.z)
		if math.Abs(have/want-1) > 0.05 {
			t.Errorf("P%v is %v, want %.1f", 100*q.p, have, want)
		}
	}
	if most := slices.Max(draws(Lengths{Median: 180, Sigma: 1, Max: 500}, 5000)); most != 500 {
		t.Errorf("the longest of 5,000 has %d tokens, at most 500", most)
	}
	if got := draws(Lengths{Median: 12}, 100); slices.Min(got) != 12 || slices.Max(got) != 12 {
		t.Errorf("without spread: %v", got)
	}
	if got := slices.Min(draws(Lengths{Median: 1, Sigma: 10}, 1000)); got != 1 {
		t.Errorf("the shortest has %d tokens, want 1", got)
	}
}

// TestWhatCounts: each token, their order, the variant and the seed make another draw.
func TestWhatCounts(t *testing.T) {
	l := Lengths{Median: 1e6, Sigma: 3}
	prompt := []kvcache.Token{5, 6, 7, 8}
	base := l.Draw(prompt, 0)
	if again := l.Draw(slices.Clone(prompt), 0); again != base {
		t.Errorf("%d, then %d", base, again)
	}
	seeded := l
	seeded.Seed = 1
	for name, other := range map[string]int{
		"another token": l.Draw([]kvcache.Token{5, 6, 9, 8}, 0), "another order": l.Draw([]kvcache.Token{6, 5, 7, 8}, 0),
		"a shorter prompt": l.Draw(prompt[:3], 0), "another variant": l.Draw(prompt, 1), "another seed": seeded.Draw(prompt, 0),
	} {
		if other == base {
			t.Errorf("%s: the same length, %d", name, base)
		}
	}
	if n := None.Draw(prompt, 0); n != math.MaxInt {
		t.Errorf("a model that never stops stops after %d", n)
	}
}

func TestText(t *testing.T) {
	for _, l := range []Lengths{Default, None, {Median: 23.4, Sigma: 1.98, Max: 751, Seed: 3}, {Median: 1}} {
		var back Lengths
		if err := back.Set(l.String()); err != nil || back != l {
			t.Errorf("%s became %+v, %v", l, back, err)
		}
	}
	for _, l := range []Lengths{{}, Default, None} { // in a configuration that travels
		data, err := json.Marshal(struct{ L Lengths }{l})
		var back struct{ L Lengths }
		if err != nil || json.Unmarshal(data, &back) != nil || back.L != l {
			t.Errorf("%+v: %s, %v, %+v", l, data, err, back.L)
		}
	}
	if (Lengths{}).OrDefault() != Default || None.OrDefault() != None {
		t.Error("the default is taken for what was given, or not for the zero value")
	}
	var l Lengths
	if err := l.Set("median=50"); err != nil || l != (Lengths{Median: 50, Sigma: Default.Sigma, Max: Default.Max}) {
		t.Errorf("%+v, %v", l, err)
	}
	for text, want := range map[string]string{
		"": "key=value", "180": "key=value", "mean=3": `no "mean"`, "median=0": "median: 0: use 1 token", "median=x": `median: "x"`, "median=1,median=2": "twice",
		"sigma=-1": "sigma: -1", "sigma=NaN": "sigma", "max=-1": "max: -1", "seed=-1": "seed", "median=Inf": "write none", "median=NaN": "median",
	} {
		if err := l.Set(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func BenchmarkDraw(b *testing.B) {
	prompt := make([]kvcache.Token, 1024)
	for b.Loop() {
		Default.Draw(prompt, 0)
	}
}
