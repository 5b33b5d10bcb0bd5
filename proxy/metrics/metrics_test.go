package metrics

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"kvferry/proto"
)

// TestITLBuckets: steps of one GPU do not all fall into one bucket, and whoever knows
// vLLM's bounds finds them.
func TestITLBuckets(t *testing.T) {
	for _, bound := range []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80} {
		if !slices.Contains(itlBuckets, bound) {
			t.Errorf("vLLM's bound %v is missing", bound)
		}
	}
	for i, bound := range itlBuckets[1:] {
		if last := itlBuckets[i]; bound <= last || bound <= .025 && bound/last > 1.21 {
			t.Errorf("a bucket from %v to %v s", last, bound)
		}
	}
}

// TestSteady: a node whose counts go back, whatever it means by that, adds nothing to any counter.
func TestSteady(t *testing.T) {
	old, now := &proto.Load{}, &proto.Load{}
	counts := 0
	for v := range reflect.ValueOf(old).Elem().NumField() {
		if f := reflect.ValueOf(old).Elem().Field(v); f.CanSet() && f.Kind() == reflect.Uint64 {
			f.SetUint(1e6)
			counts++
		}
	}
	m := New()
	Steady(old, now)
	m.Engine("model", "node").Load(old, now)
	families, err := m.registry.Gather()
	if err != nil || counts < 16 {
		t.Fatal(counts, err)
	}
	for _, f := range families {
		for _, one := range f.Metric {
			if labels := one.Label; len(labels) > 1 && one.Counter.GetValue() != 0 {
				t.Errorf("%s %v is %v", f.GetName(), labels, one.Counter.GetValue())
			}
		}
	}
}

// TestGoneNodesAreForgotten: whatever ids nodes register with, the series of those that are gone stay bounded. A
// node that comes back goes on counting where it was.
func TestGoneNodesAreForgotten(t *testing.T) {
	m := New()
	series := func() (all int, back float64) {
		families, err := m.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, one := range f.Metric {
				all++
				for _, l := range one.Label {
					if f.GetName() == "vllm:num_preemptions_total" && l.GetValue() == "back" {
						back = one.Counter.GetValue()
					}
				}
			}
		}
		return all, back
	}
	old, now := &proto.Load{}, &proto.Load{Preemptions: 7}
	m.Engine("model", "back").Load(old, now)
	m.Gone("model", "back")
	m.Engine("model", "back").Load(old, now)
	cycle := func(n int) {
		for i := range n {
			id := fmt.Sprint("node-", i)
			m.Engine("model", id).Load(old, now)
			m.Gone("model", id)
		}
	}
	cycle(maxGone)
	most, _ := series()
	cycle(10 * maxGone)
	all, back := series()
	if all > most || len(m.engines) > maxGone+1 || len(m.gone) > maxGone {
		t.Errorf("%d series of %d nodes, %d gone: there were %d", all, len(m.engines), len(m.gone), most)
	}
	if back != 14 {
		t.Errorf("the node that came back counts %v, want 14", back)
	}
	m.Model("model").Refused("x")
	m.Gone("model", wholeCluster)
	cycle(maxGone + 1)
	if m.counters["kvferry:prompts_ahead_total"] == nil || m.models["model"] == nil {
		t.Error("a node that is called as the cluster took its counts along")
	}
}
