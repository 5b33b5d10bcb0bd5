package load

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kvcache"
)

// stream opens a load.
func stream(tb testing.TB, s Spec) Load {
	tb.Helper()
	l, err := s.Open()
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func TestRandomLoad(t *testing.T) {
	const n = 20000
	for _, burstiness := range []float64{0.25, 1, 4} {
		load := stream(t, Spec{Requests: n, Rate: 10, Burstiness: burstiness, InputLen: 100, OutputLen: 20, RangeRatio: 0.5, PrefixLen: 32, Seed: 3, Vocab: 1000})
		var last time.Duration
		var gaps, squares, prompt, output float64
		var prefix []kvcache.Token
		for i := range n {
			r, ok, err := load.Next()
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			if len(r.Prompt) < 82 || len(r.Prompt) > 182 || r.MaxTokens < 10 || r.MaxTokens > 30 {
				t.Fatalf("request %d has %d + %d tokens", i, len(r.Prompt), r.MaxTokens)
			}
			if slices.Max(r.Prompt) >= 1000 {
				t.Fatalf("request %d has token %d of 1000", i, slices.Max(r.Prompt))
			}
			if i == 0 {
				prefix = r.Prompt[:32]
			} else if !slices.Equal(prefix, r.Prompt[:32]) || slices.Equal(r.Prompt[32:48], prefix[:16]) {
				t.Fatalf("request %d does not begin as the first", i)
			}
			gap := (r.At - last).Seconds()
			last = r.At
			gaps, squares = gaps+gap, squares+gap*gap
			prompt, output = prompt+float64(len(r.Prompt)), output+float64(r.MaxTokens)
		}
		if _, ok, _ := load.Next(); ok {
			t.Errorf("more than %d requests", n)
		}
		mean := gaps / n
		cv := math.Sqrt(squares/n-mean*mean) / mean
		// A gamma distribution of shape k has a coefficient of variation of 1/sqrt(k).
		if want := 1 / math.Sqrt(burstiness); math.Abs(mean-0.1) > 0.005 || math.Abs(cv-want) > 0.05*want {
			t.Errorf("burstiness %v: gaps of %.4f s on average, cv %.2f: want 0.1 and %.2f", burstiness, mean, cv, want)
		}
		if math.Abs(prompt/n-132) > 1 || math.Abs(output/n-20) > 0.3 {
			t.Errorf("%.1f + %.1f tokens on average, want 132 + 20", prompt/n, output/n)
		}
	}
	all := stream(t, Spec{Requests: 3, Rate: math.Inf(1), Burstiness: 1, InputLen: 1, OutputLen: 1, Vocab: 2})
	for range 3 {
		if r, ok, err := all.Next(); r.At != 0 || !ok || err != nil || len(r.Prompt) != 1 || r.MaxTokens != 1 {
			t.Errorf("%+v, %v, %v", r, ok, err)
		}
	}
}

func TestRandomFaults(t *testing.T) {
	r := Spec{Requests: -1, Rate: 0, Burstiness: math.NaN(), RangeRatio: 1, InputLen: 0, OutputLen: 0, PrefixLen: -1}
	err := r.Validate()
	for _, field := range []string{"Requests: -1:", "Rate: 0:", "Burstiness: NaN:", "RangeRatio: 1:", "InputLen: 0:", "OutputLen: 0:", "PrefixLen: -1:", "Vocab: 0:"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%v: want %q in it", err, field)
		}
	}
}

// TestEqualGaps: an infinite burstiness is no gamma distribution, but equal gaps.
func TestEqualGaps(t *testing.T) {
	l, err := Spec{Requests: 4, Rate: 2, Burstiness: math.Inf(1), InputLen: 4, OutputLen: 1, Vocab: 10}.Open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if r, ok, err := l.Next(); !ok || err != nil || r.At != time.Duration(i)*500*time.Millisecond {
			t.Errorf("request %d is due at %v (%t, %v)", i, r.At, ok, err)
		}
	}
}
