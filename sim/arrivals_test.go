package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/load"
)

// TestClosedLoop: a client that asks again when it is answered has a request under way at
// every moment, and the next arrives when the last token of the one before is there.
func TestClosedLoop(t *testing.T) {
	for _, h := range []handoff.Handoff{handoff.V0, handoff.Pull, handoff.Layerwise} {
		all := load.Load{Source: poisson(t, 20, 1e9, 200, 5).Source, InFlight: 1}
		out, _ := simulate(t, pair(t, h, 1), all)
		if len(out) != 20 {
			t.Fatalf("%v: %d requests ended", h, len(out))
		}
		for i, o := range out[1:] {
			if o.Arrived != out[i].Last {
				t.Errorf("%v: request %d arrives at %v, the one before ends at %v", h, i+1, o.Arrived, out[i].Last)
			}
		}
	}
}

// TestTimesAndRoom: a request comes when it is due and there is room. A bound that is
// never reached changes nothing, to the last bit.
func TestTimesAndRoom(t *testing.T) {
	run := func(inFlight int) ([]*Outcome, string) {
		l := poisson(t, 200, 6, 300, 20)
		l.InFlight = inFlight
		out, stats := simulate(t, pair(t, handoff.Layerwise, 1), l)
		var b strings.Builder
		for _, o := range out {
			fmt.Fprintf(&b, "%+v\n", *o)
		}
		fmt.Fprintf(&b, "%+v\n", *stats)
		return out, b.String()
	}
	open, want := run(0)
	if _, got := run(200); got != want {
		t.Error("a bound that is never reached changes the outcome")
	}
	for _, o := range open {
		if o.Arrived != o.Due {
			t.Errorf("request %d is due at %v and arrives at %v", o.Index, o.Due, o.Arrived)
		}
	}
	const bound = 3
	out, _ := run(bound)
	slices.SortFunc(out, func(a, b *Outcome) int { return a.Index - b.Index })
	waited := 0
	for i, o := range out {
		if o.Due != open[slices.IndexFunc(open, func(p *Outcome) bool { return p.Index == i })].Due {
			t.Errorf("request %d is due at %v", i, o.Due)
		}
		if o.Arrived > o.Due {
			waited++
			if !slices.ContainsFunc(out[:i], func(p *Outcome) bool { return p.Last == o.Arrived }) {
				t.Errorf("request %d, due at %v, arrives at %v, when none ends", i, o.Due, o.Arrived)
			}
		}
	}
	if waited == 0 || waited == len(out) {
		t.Errorf("%d of %d requests waited for room", waited, len(out))
	}
}

// TestBadLoad: a load that fails or goes back in time ends the run.
func TestBadLoad(t *testing.T) {
	back := list(load.Request{At: time.Second, Prompt: prompt(t, 10), MaxTokens: 1}, load.Request{At: time.Millisecond, Prompt: prompt(t, 10), MaxTokens: 1})
	if _, err := Run(context.Background(), pair(t, handoff.Pull, 1), back); err == nil || !strings.Contains(err.Error(), "request 1: the load goes back in time: due at 1ms after 1s") {
		t.Errorf("%v", err)
	}
}
