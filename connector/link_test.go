package connector

import (
	"testing"
	"time"

	"kvferry/handoff"
	"kvferry/kvcache"
)

// TestLinkQueued is a transcript: what is still to cross the link is the prompt's KV from the
// moment a decode leg comes or a prompt is computed, less each part that is there, and nothing
// once it is over.
func TestLinkQueued(t *testing.T) {
	const kv = 8 * 500_000 // of 8 tokens
	prompt := []kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8}
	type step struct {
		event Event
		want  int64
	}
	blocks := []kvcache.Entry{{Index: 0}, {Index: 1}}
	for name, tc := range map[string]struct {
		h     handoff.Handoff
		leg   handoff.Leg
		steps []step
	}{
		"decode is written to": {handoff.Layerwise, handoff.DecodeLeg, []step{
			{nil, kv}, {Arrived{ID: 1, Part: 0}, kv / 2}, {Arrived{ID: 1, Part: 0}, kv / 2}, {Arrived{ID: 1, Part: 1}, 0},
		}},
		"decode reads": {handoff.Pull, handoff.DecodeLeg, []step{
			{nil, kv}, {Moved{ID: 1, Part: PartAll, Bytes: kv}, 0},
		}},
		"decode is cancelled": {handoff.Pull, handoff.DecodeLeg, []step{{nil, kv}, {Cancel{ID: 1}, 0}}},
		"prefill writes": {handoff.Layerwise, handoff.PrefillLeg, []step{
			{nil, 0},
			{LayerDone{Layer: 0, At: 5 * time.Millisecond}, kv},
			{StepDone{At: 10 * time.Millisecond, Tokens: []kvcache.Token{1}}, kv},
			{Moved{ID: 1, Part: 0, Bytes: kv / 2}, kv / 2},
			{Moved{ID: 1, Part: 1, Bytes: kv / 2}, 0},
		}},
		"prefill is read": {handoff.Pull, handoff.PrefillLeg, []step{
			{nil, 0}, {StepDone{At: 10 * time.Millisecond, Tokens: []kvcache.Token{1}}, kv}, {Release{Transfer: 1}, 0},
		}},
	} {
		prof := smallProfile()
		prof.Costs.RequestMS = 0
		pool := kvcache.NewPool(prof.Blocks(), prof.KVGeometry.BlockTokens, false)
		core, err := NewCore(Config{Scheduler: newBatching(t, prof, pool, false), Pool: pool, Profile: prof})
		if err != nil {
			t.Fatal(err)
		}
		r := Remote{Node: "other", Transfer: 1, Blocks: blocks, Tokens: len(prompt)}
		if !tc.h.Moves(tc.leg) {
			r = Remote{}
		}
		for i, s := range tc.steps {
			ev := s.event
			if ev == nil {
				ev = Submit{ID: 1, Leg: tc.leg, Handoff: tc.h, Prompt: prompt, MaxTokens: 4, Deadline: time.Hour, Remote: r}
			}
			core.Step(time.Duration(i)*5*time.Millisecond, ev)
			if got := core.LinkQueued(); got != s.want {
				t.Errorf("%s, step %d: %d bytes, want %d", name, i, got, s.want)
			}
		}
	}
}
