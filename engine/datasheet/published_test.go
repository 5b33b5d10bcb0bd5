package datasheet

import (
	"math"
	"testing"

	"kvferry/engine"
)

// TestDeepSeek: decode steps of DeepSeek-V3 with full batches, in the middle of answers of
// 1,000 tokens, beside the median ITL that SGLang's two servers published (30.38 and 33.07 ms at
// 32, 24.26 and 26.21 at 16). Nothing here was fitted to them: what is held is what docs/profiles.md
// says.
func TestDeepSeek(t *testing.T) {
	for _, c := range []struct {
		gpu   string
		batch int
		want  float64 // ms
	}{{"H200", 32, 25.8}, {"H200", 16, 19.0}, {"B200", 32, 18.3}, {"B200", 16, 14.2}, {"MI300X", 32, 24.1}, {"MI300X", 16, 17.8}} {
		s := server(t, "deepseek-v3", c.gpu, 8)
		s.Engine = engine.SGLang
		e, err := s.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		step := engine.Step{Kind: engine.Decode, Tokens: c.batch}
		for range c.batch {
			step.Works = append(step.Works, engine.Work{From: 1499, N: 1})
		}
		got := engine.NewCostModel(e.Profile.Costs, e.Profile.KVGeometry).Run(&step).Seconds() * 1e3
		if math.Abs(got-c.want) > 0.1 {
			t.Errorf("%s, batch of %d: %.2f ms, docs/profiles.md has %.1f", c.gpu, c.batch, got, c.want)
		}
	}
}
