package connector

import (
	"testing"
	"time"

	"kvferry/engine/batching"
	"kvferry/handoff"
	"kvferry/kvcache"
)

// TestFailedTransfers: what counts as a failed transfer, and what only ends a
// request.
func TestFailedTransfers(t *testing.T) {
	leg := Submit{
		ID: 1, Prompt: letters("abcd"), MaxTokens: 9, Deadline: time.Minute,
		Remote: Remote{Node: "far", Transfer: 9, Tokens: 4, Blocks: []kvcache.Entry{{}}},
	}
	pull, layerwise := leg, leg // the first reads at once, the second waits for the front end
	pull.Leg, pull.Handoff = handoff.DecodeLeg, handoff.Pull
	layerwise.Leg, layerwise.Handoff = handoff.PrefillLeg, handoff.Layerwise
	for _, x := range []struct {
		name   string
		leg    Submit
		events []Event
		at     time.Duration // later
		want   uint64
	}{
		{"cancelled", pull, []Event{Cancel{1}, Moved{ID: 1, Err: errWire}, Closed{1}}, 0, 0},
		{"withdrawn, then cancelled", pull, []Event{Moved{ID: 1, Err: ErrWithdrawn}, Cancel{1}}, time.Hour, 0},
		{"withdrawn, and not a word", pull, []Event{Moved{ID: 1, Err: ErrWithdrawn}}, withdrawnGrace, 1},
		{"withdrawn, and not a word yet", pull, []Event{Moved{ID: 1, Err: ErrWithdrawn}}, withdrawnGrace - 1, 0},
		{"the wire was cut", pull, []Event{Moved{ID: 1, Err: errWire}}, 0, 1},
		{"a bad block", pull, []Event{Moved{ID: 1}, Checked{ID: 1, Bad: 1, Err: errWire}}, 0, 1},
		{"the deadline while it moves", pull, nil, time.Minute, 1},
		{"the deadline while it is checked", pull, []Event{Moved{ID: 1}}, time.Minute, 1},
		{"the deadline when it has landed", pull, []Event{Moved{ID: 1}, Checked{ID: 1, Blocks: 1}}, time.Minute, 0},
		{"the deadline in the queue", layerwise, nil, time.Minute, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			prof := smallProfile()
			pool := kvcache.NewPool(8, prof.KVGeometry.BlockTokens, false)
			sched, err := batching.NewScheduler(batching.ConfigOf(prof, false, pool))
			if err != nil {
				t.Fatal(err)
			}
			core, err := NewCore(Config{Scheduler: sched, Pool: pool, Profile: prof})
			if err != nil {
				t.Fatal(err)
			}
			core.Step(0, x.leg)
			for _, ev := range x.events {
				core.Step(0, ev)
			}
			core.Step(x.at)
			if got := core.Totals().Failed; got != x.want {
				t.Errorf("%d transfers failed, want %d", got, x.want)
			}
		})
	}
}
