package metrics

import (
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
