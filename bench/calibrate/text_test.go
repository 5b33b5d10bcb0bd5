package calibrate

import (
	"math"
	"strings"
	"testing"

	"kvferry/bench/observe"
)

// TestText: what is said of one round, of the worst measure, and of a machine that did other things.
func TestText(t *testing.T) {
	f := Fitted{
		Costs:     []Cost{{"request_ms", 3, 2.9, 3.1}},
		Residuals: []Residual{{Point{Kind: Prompts, Prompt: 8}, "mean TTFT of the others", 10, 10.1}, {Point{Kind: Crowd, Batch: 32}, "mean TTFT", 20, 35}},
		Noise:     math.NaN(),
	}
	check := func(text string, want, not []string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is not in\n%s", w, text)
			}
		}
		for _, w := range not {
			if strings.Contains(text, w) {
				t.Errorf("%q is in\n%s", w, text)
			}
		}
	}
	busy := &observe.Disturbance{Why: []string{"timers came 2.0 ms late on average (limit 0.5)"}}
	says := "~ this machine did other things too: timers came 2.0 ms late on average"
	check(f.String(), []string{
		"\nThe worst is 32 prompts in a crowd, one every 0s: mean TTFT:\n35.00 ms, where 20.00 were measured.\n", "One round was measured: how far rounds differ is not known",
	}, []string{"nothing can be predicted better", "~"})
	f.Noise, f.Meanwhile = 0.01, busy
	check(f.String(), []string{"by 1.00 % (median): nothing can be predicted better", "3~", says}, []string{"One round"})
	all := []Comparison{{"mean TTFT", 161.06, 160.7, []float64{0.02, -0.031, 0.01}}}
	check(verdict(&HeldBack{Parts: 1}, all, busy), []string{"161.06~", says}, []string{"part"})
	check(verdict(&HeldBack{Parts: 3}, all, nil), []string{"161.06  ", "in 3 parts", "worst part", "-3.1 %"}, []string{"~"})
}
