package sim

import (
	"testing"
	"time"

	"kvferry/load"
)

// TestFrontEnd: requests that come together go in one after the other, and the tokens of a step
// come out together, so every time can be worked out.
func TestFrontEnd(t *testing.T) {
	const n, in, out = 4, 3 * time.Millisecond, 2 * time.Millisecond
	p := a10(t)
	p.Costs.FrontEndInMS, p.Costs.FrontEndOutMS, p.Costs.RequestMS, p.Costs.OutputDelayMS = 3, 2, 1, 0
	p.Costs.PrefillStepMS, p.Costs.PrefillTokenMS, p.Costs.DecodeStepMS, p.Costs.DecodeSeqMS = 0, 0, 50, 0
	var requests []load.Request
	for range n {
		requests = append(requests, load.Request{Prompt: prompt(t, 10), MaxTokens: 2})
	}
	all, _ := simulate(t, Config{Profile: p, Nondisagg: 1, RecordTokens: true}, list(requests...))
	// All come at 0 ms, and are in at 3, 6, 9 and 12 ms. The first decodes for 50 ms from 4 ms
	// on, and its first token is out behind the last that comes in. The others' prompts
	// are one step at 54, then all three decode until 104.
	want := [n][2]time.Duration{
		{n*in + out, 54*time.Millisecond + out},
		{},
		{},
		{},
	}
	for i := 1; i < n; i++ {
		want[i] = [2]time.Duration{56*time.Millisecond + 3*out, 104*time.Millisecond + 3*out}
	}
	for i, o := range all {
		if got := [2]time.Duration(o.TokenTimes); got != want[i] {
			t.Errorf("request %d: tokens at %v, want %v", i, got, want[i])
		}
		if o.Breakdown.Proxy != time.Millisecond+time.Duration(i+1)*in {
			t.Errorf("request %d: %v until it may be scheduled", i, o.Breakdown.Proxy)
		}
	}
}
