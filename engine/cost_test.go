package engine

import (
	"math"
	"testing"
	"time"

	"kvferry/kvcache"
)

func shipped(t testing.TB) *Profile {
	t.Helper()
	p, err := LoadProfile(DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// gpu is a model of one GPU, or of several, that serve Qwen2.5-7B.
func gpu(c Costs) *CostModel {
	return NewCostModel(c, kvcache.Geometry{Layers: 28, KVHeads: 4, HeadDim: 128, ElemBytes: 2, BlockTokens: 16, HiddenSize: 3584})
}

func prefill(at time.Duration, tokens int) *Step {
	return &Step{Kind: Prefill, At: at, Tokens: tokens, Works: make([]Work, 1)}
}

// TestCostOfPublishedPrompts: the figures that the calibration report gives for
// prompts of the published lengths, on a GPU that was idle and on one that was
// busy before. It rounds to whole milliseconds, and its hot figure is the limit
// after long load.
func TestCostOfPublishedPrompts(t *testing.T) {
	const minute = time.Minute
	for _, c := range []struct {
		tokens    int
		cold, hot float64 // ms
	}{
		{245, 51, 65},
		{1012, 235, 265},
		{8096, 2076, 2108}, // hot: 8096 x 0.260, not in the report
	} {
		m := gpu(shipped(t).Costs)
		if got := ms(m.Run(prefill(0, c.tokens))); math.Abs(got-c.cold) > 1+c.cold/1000 {
			t.Errorf("%d tokens on a cold GPU take %.2f ms, want about %.0f", c.tokens, got, c.cold)
		}
		now := minute
		for range 20 {
			now += m.Run(prefill(now, 1000))
		}
		if got := ms(m.Run(prefill(now, c.tokens))); math.Abs(got-c.hot) > 1+c.hot/1000 {
			t.Errorf("%d tokens on a hot GPU take %.2f ms, want about %.0f", c.tokens, got, c.hot)
		}
		if got := ms(m.Run(prefill(now+minute, c.tokens))); math.Abs(got-c.cold) > 1+c.cold/1000 {
			t.Errorf("%d tokens after a minute of idling take %.2f ms, want about %.0f", c.tokens, got, c.cold)
		}
	}
}

// TestHeatClosedForm compares the closed form of CostModel with the integral it
// solves, taken in steps of 1 µs, from several states of heat.
func TestHeatClosedForm(t *testing.T) {
	c := shipped(t).Costs
	for _, heat := range []float64{0, 0.25, 0.9, 1} {
		for _, work := range []float64{0, 0.05, 1, 45, 190, 1500} {
			m := &CostModel{c: c, heat: heat}
			got := m.hot(work)
			const dt = 1e-3 // ms
			h, done, want := heat, 0.0, 0.0
			decay := math.Exp(-dt / c.HeatMS)
			for done < work {
				mid := 1 - (1-h)*math.Sqrt(decay)
				rate := 1 / (1 + c.HotSlowdown*mid)
				h = 1 - (1-h)*decay
				step := min(dt, (work-done)/rate)
				done += step * rate
				want += step
				if work-done < 1e-12 {
					break
				}
			}
			if math.Abs(got-want) > 1e-5*(1+want) {
				t.Errorf("work of %v ms from heat %v takes %.6f ms, integrated %.6f", work, heat, got, want)
			}
		}
	}
}

// TestCostIsAdditive: a step and the same work cut in two take the same time but
// for the cost of a launch, so chunking changes nothing in the model.
func TestCostIsAdditive(t *testing.T) {
	c := shipped(t).Costs
	c.PrefillStepMS = 0
	whole, cut := gpu(c), gpu(c)
	one := whole.Run(prefill(0, 1000))
	first := cut.Run(prefill(0, 300))
	two := first + cut.Run(prefill(first, 700))
	if d := one - two; d.Abs() > 10*time.Nanosecond {
		t.Errorf("1000 tokens take %v, 300 and 700 take %v", one, two)
	}
}

// TestHeatHalves: after the half-life of its heat a GPU that was cold and busy is as
// warm as one that was hot and idle.
func TestHeatHalves(t *testing.T) {
	c := shipped(t).Costs
	half := duration(c.HeatMS * math.Ln2)
	warmed, cooled := gpu(c), gpu(c)
	warmed.Run(&Step{Kind: Receive, Extra: half})
	now := cooled.Run(&Step{Kind: Receive, Extra: time.Minute}) + half
	a, b := warmed.Run(prefill(half, 300)), cooled.Run(prefill(now, 300))
	cold := gpu(c).Run(prefill(0, 300))
	if d := a - b; d.Abs() > time.Microsecond || a < cold+time.Millisecond {
		t.Errorf("300 tokens take %v after warming up, %v after cooling down, %v on a cold GPU", a, b, cold)
	}
}

func TestCostOfDecode(t *testing.T) {
	p := shipped(t)
	for _, c := range []struct {
		costs Costs
		batch int
		want  float64
	}{
		{p.Costs, 1, 12.39},
		{p.Costs, 10, 12.93},
		{p.Costs, 100, 18.33},
		{p.DisaggEngine(), 1, 11.47},
		{p.DisaggEngine(), 10, 12.01},
	} {
		m := gpu(c.costs)
		if got := ms(m.Run(&Step{Kind: Decode, Tokens: c.batch, Works: make([]Work, c.batch)})); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("decode of %d takes %v ms, want %v", c.batch, got, c.want)
		}
	}
}

func TestCostOfOtherSteps(t *testing.T) {
	m := gpu(shipped(t).Costs)
	if got := m.Run(&Step{Kind: Receive, Tokens: 1000, Works: make([]Work, 3)}); got != 0 {
		t.Errorf("a receive takes %v in the model; the hand-off is what takes time", got)
	}
	plain := m.Run(prefill(time.Minute, 100))
	extra := prefill(2*time.Minute, 100)
	extra.Extra = 5 * time.Millisecond
	if got := m.Run(extra); got != plain+5*time.Millisecond {
		t.Errorf("with 5 ms extra a step of %v takes %v", plain, got)
	}
	mixed := prefill(3*time.Minute, 100)
	mixed.Kind = Mixed
	if got := m.Run(mixed); got != plain {
		t.Errorf("a mixed step takes %v, a prefill of as many tokens %v", got, plain)
	}
	zero, err := LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	if got := gpu(zero.Costs).Run(prefill(0, 10000)); got != 0 {
		t.Errorf("a step of the zero profile takes %v", got)
	}
}
