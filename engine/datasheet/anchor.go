package datasheet

import (
	"fmt"
	"strings"
	"time"

	"kvferry/internal/config"
)

// A Known is what a server takes for one request alone, measured or published: what its engine's kernels take besides
// reading and arithmetic is in no datasheet, and can be had from this. Fields that are 0 are not known.
type Known struct {
	ITL     time.Duration // from token to token
	Context int           // tokens of the sequence then
	TTFT    time.Duration
	Prompt  int // its tokens
}

func (s *Server) validateKnown(bad *config.Faults) {
	k := &s.Known
	for _, f := range []struct {
		field, of string
		known     time.Duration
		tokens    int
	}{{"KnownITL", "KnownContext", k.ITL, k.Context}, {"KnownTTFT", "KnownPrompt", k.TTFT, k.Prompt}} {
		if f.known < 0 {
			bad.Add(f.field, f.known, "use more than 0, or leave it out")
		}
		if f.known > 0 {
			config.Between(bad, f.of, f.tokens, 1, s.maxLen())
		}
	}
}

// anchor sets the profile's costs so that it gives what is known.
//
// A step of one sequence is what is read, all-reduces, and launching: launching, whose estimate is kernels x
// kernel_us, is what is left of the known ITL. It is that of steps with prompts too. Of a prompt all is kept but
// what each of its tokens takes.
func (s *Server) anchor(e *Estimate) error {
	p := &e.Profile
	c := &p.Costs
	tp := float64(s.TensorParallel)
	if given := s.Known.ITL; given > 0 {
		c.PrefillStepMS, c.DecodeStepMS = 0, c.PrefillFloorMS
		rest := itl(p, 1, s.Known.Context)
		if given <= rest {
			return config.NewFault("KnownITL", given, "that is %v shorter than what the memory's rate and all-reduces alone take here, %v: is it of more GPUs, fewer bits a weight, or several tokens a step?", precise(rest-given), precise(rest))
		}
		c.PrefillStepMS = milliseconds(given - rest)
		c.DecodeStepMS = c.PrefillFloorMS + tp*c.PrefillStepMS
	}
	if given := s.Known.TTFT; given > 0 {
		takes := func(token float64) time.Duration {
			c.PrefillTokenMS = token
			return ttft(p, s.Known.Prompt, e.step)
		}
		low, high := c.PrefillTokenMS*known.MFU, milliseconds(given)*tp/float64(s.Known.Prompt)
		if least := takes(low); given < least {
			return config.NewFault("KnownTTFT", given, "that is %v shorter than what steps, the memory's rate and the peak alone take here, %v: was the prompt cached in part, or is it of more GPUs?", precise(least-given), precise(least))
		}
		for range 60 { // a bit each, of the digits that there are
			if middle := (low + high) / 2; takes(middle) <= given {
				low = middle
			} else {
				high = middle
			}
		}
		c.PrefillTokenMS = low
	}
	round(&c.PrefillStepMS, &c.DecodeStepMS, &c.PrefillTokenMS)
	p.Disagg.DecodeStepMS = c.DecodeStepMS
	return nil
}

// String names what is known; "" for nothing.
func (k Known) String() string {
	var all []string
	if k.ITL > 0 {
		all = append(all, "ITL")
	}
	if k.TTFT > 0 {
		all = append(all, "TTFT")
	}
	return strings.Join(all, " and ")
}

// itl and ttft say what a cost was set by.
func (k *Known) itl() string {
	return fmt.Sprintf("so that one sequence with a context of %d tokens takes %v a token (given)", k.Context, k.ITL)
}

func (k *Known) ttft() string {
	return fmt.Sprintf("so that one prompt of %d tokens alone takes %v to its first token (given)", k.Prompt, k.TTFT)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func precise(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
