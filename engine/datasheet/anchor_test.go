package datasheet

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"kvferry/internal/config"
)

// TestKnown: a profile gives the figures that are known, whether they are longer or shorter than the datasheet's, and
// what grows with batches and contexts stays the datasheet's.
func TestKnown(t *testing.T) {
	for _, c := range []struct {
		model, gpu string
		tp         int
		known      Known
	}{
		{"deepseek-v3", "B200", 8, Known{ITL: 21400 * time.Microsecond, Context: 768}},
		{"deepseek-v3", "B200", 8, Known{ITL: 4 * time.Millisecond, Context: 4096}},
		{"deepseek-v3", "B200", 8, Known{TTFT: 160 * time.Millisecond, Prompt: 922}},
		{"deepseek-v3", "H200", 8, Known{ITL: 9700 * time.Microsecond, Context: 1383, TTFT: 150 * time.Millisecond, Prompt: 1000}},
		{"qwen2.5-7b-gptq-int4", "A10", 1, Known{ITL: 13 * time.Millisecond, Context: 100, TTFT: 2 * time.Second, Prompt: 8000}},
	} {
		s := server(t, c.model, c.gpu, c.tp)
		plain, err := s.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		s.Known = c.known
		e, err := s.Estimate()
		if err != nil {
			t.Fatal(err)
		}
		p, before, text := &e.Profile, &plain.Profile, e.String()
		near := func(what string, got, want time.Duration) {
			t.Helper()
			if math.Abs(float64(got)/float64(want)-1) > 1e-4 {
				t.Errorf("%s on %s with %+v: %s %v, want %v", c.model, c.gpu, c.known, what, got, want)
			}
		}
		if k := c.known; k.ITL > 0 {
			near("ITL", itl(p, 1, k.Context), k.ITL)
			more := k.ITL - itl(before, 1, k.Context)
			near("ITL of 32", itl(p, 32, 500), itl(before, 32, 500)+more)
			near("first step", ttft(p, 1, e.step), ttft(before, 1, e.step)+more)
			near("disaggregated step", time.Duration(p.Disagg.DecodeStepMS*1e6), time.Duration(p.Costs.DecodeStepMS*1e6))
		} else {
			near("ITL", itl(p, 1, 500), itl(before, 1, 500))
		}
		if k := c.known; k.TTFT > 0 {
			near("TTFT", ttft(p, k.Prompt, e.step), k.TTFT)
		}
		if p.KVBytes != before.KVBytes || p.Costs.DecodeTokenMS != before.Costs.DecodeTokenMS || p.Costs.DecodeKVTokenNS != before.Costs.DecodeKVTokenNS {
			t.Errorf("%+v changed, %+v before", p, before)
		}
		if !strings.HasSuffix(p.Name, "from datasheet and a known "+c.known.String()) || !strings.Contains(text, "that was given is not in these comparisons") {
			t.Errorf("%s does not say what was given", text)
		}
		for said, there := range map[string]bool{"takes " + c.known.ITL.String() + " a token (given)": c.known.ITL > 0, "takes " + c.known.TTFT.String() + " to its first token (given)": c.known.TTFT > 0} {
			if strings.Contains(text, said) != there {
				t.Errorf("%q is said: %v, in %s", said, !there, text)
			}
		}
	}
}

// TestKnownTooShort: a figure below what reading and arithmetic take is refused, and by how much it is below.
func TestKnownTooShort(t *testing.T) {
	s := server(t, "deepseek-v3", "B200", 8)
	plain, err := s.Estimate()
	if err != nil {
		t.Fatal(err)
	}
	p := plain.Profile
	rest := itl(&p, 1, 768) - time.Duration(p.Costs.PrefillStepMS*1e6)
	p.Costs.PrefillTokenMS *= known.MFU
	prompt := ttft(&p, 4000, plain.step)
	for want, k := range map[string]Known{
		"that is " + precise(rest-time.Millisecond).String() + " shorter than what the memory's rate": {ITL: time.Millisecond, Context: 768},
		"that is " + precise(prompt-2*time.Millisecond).String() + " shorter than what steps":         {TTFT: 2 * time.Millisecond, Prompt: 4000},
		"KnownITL: -1ms":         {ITL: -time.Millisecond, Context: 768},
		"KnownContext: 0: use 1": {ITL: time.Second},
		"KnownPrompt: 9000: ":    {TTFT: time.Second, Prompt: 9000},
	} {
		s.Known = k
		_, err := s.Estimate()
		var fault *config.Fault
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, &fault) {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
}
