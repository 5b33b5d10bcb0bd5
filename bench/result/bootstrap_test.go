package result

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvferry/bench/stats"
)

// requests are n requests with some values each, drawn by seed.
func requests(seed uint64, n, most int, scale float64) [][]float64 {
	rng := rand.New(rand.NewPCG(seed, 7))
	list := make([][]float64, n)
	for i := range list {
		for range 1 + rng.IntN(most) {
			list[i] = append(list[i], scale*rng.ExpFloat64())
		}
	}
	return list
}

// TestDraw: the figures of a draw are those of the list that has each value as often as its
// request was drawn.
func TestDraw(t *testing.T) {
	for seed := range uint64(200) {
		list := requests(seed, 1+int(seed%30), 1+int(seed%5), 10)
		if seed%3 == 0 {
			list[0] = nil // a request without this latency
		}
		p := newPool(list)
		times := make([]int, len(list))
		got, ok := p.draw(rand.New(rand.NewPCG(seed, 1)), times)
		var all []float64
		drawn := 0
		for i, n := range times {
			drawn += n
			for range n {
				all = append(all, list[i]...)
			}
		}
		if drawn != len(list) || ok != (len(all) > 0) {
			t.Fatalf("seed %d: %d drawn of %d, %v", seed, drawn, len(list), ok)
		}
		if !ok {
			continue
		}
		slices.Sort(all)
		sum := 0.0
		for _, v := range all {
			sum += v
		}
		want := []float64{sum / float64(len(all))}
		for _, s := range bootstrapped[1:] {
			want = append(want, stats.Percentile(all, s.p))
		}
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-9 {
				t.Errorf("seed %d, %s: %g, want %g", seed, bootstrapped[i].key, got[i], want[i])
			}
		}
	}
}

// TestIntervals: of two draws of one distribution the interval has 0 in it about as often as it
// promises; of two that are 30 % apart it mostly has not. Seeded: no run differs from another.
func TestIntervals(t *testing.T) {
	const trials = 200
	same, apart := 0, 0
	for trial := range uint64(trials) {
		a := newPool(requests(3*trial, 150, 1, 1))
		b := newPool(requests(3*trial+1, 150, 1, 1))
		c := newPool(requests(3*trial+2, 150, 1, 1.6))
		if mean := intervals(a, b, false, 0.95, 200, trial)[0]; mean[0] <= 0 && mean[1] >= 0 {
			same++
		}
		if mean := intervals(a, c, false, 0.95, 200, trial)[0]; mean[0] > 0 {
			apart++
		}
	}
	if same < 180 || same > 199 {
		t.Errorf("0 is in %d of %d intervals of 95 %%", same, trials)
	}
	if apart < 180 {
		t.Errorf("a factor of 1.6 is shown in %d of %d", apart, trials)
	}
}

// TestPaired: where the same requests are drawn of both, what they have in common drops out; a
// draw is the same for the same seed, and another for another.
func TestPaired(t *testing.T) {
	list := requests(1, 100, 3, 10)
	slower := make([][]float64, len(list))
	for i := range list {
		for _, v := range list[i] {
			slower[i] = append(slower[i], 1.1*v)
		}
	}
	a, b := newPool(list), newPool(slower)
	for i, interval := range intervals(a, b, true, 0.95, 100, 5) {
		if math.Abs(interval[0]-10) > 1e-6 || math.Abs(interval[1]-10) > 1e-6 {
			t.Errorf("%s: %v, want 10", bootstrapped[i].key, interval)
		}
	}
	apart := intervals(a, b, false, 0.95, 100, 5)
	if again := intervals(a, b, false, 0.95, 100, 5); apart[0][1]-apart[0][0] < 5 || !slices.Equal(apart[0], again[0]) {
		t.Errorf("%v and %v of other requests", apart[0], again[0])
	}
	if other := intervals(a, b, false, 0.95, 100, 6); slices.Equal(apart[0], other[0]) {
		t.Error("another seed draws the same")
	}
}

// TestDraws: millions of values are drawn less often, and never less than a few hundred times.
func TestDraws(t *testing.T) {
	of := func(values int) *pool { return &pool{sorted: make([]float64, values)} }
	for _, c := range []struct{ wanted, values, want int }{{2000, 1000, 2000}, {2000, 400_000, 499}, {2000, 5_000_000, 200}, {100, 5_000_000, 100}} {
		if n := draws(c.wanted, of(c.values), of(c.values)); n != c.want {
			t.Errorf("%d of %d values are %d", c.wanted, c.values, n)
		}
	}
}
