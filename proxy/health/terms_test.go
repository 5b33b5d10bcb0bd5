package health

import (
	"slices"
	"testing"
	"time"
)

func TestTerms(t *testing.T) {
	const ttl = 3 * time.Second
	s := func(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }
	// Each step is a call of step at a time, after the leases in renewed were renewed.
	type step struct {
		at      time.Duration
		renewed []uint64
		over    []uint64
		stood   time.Duration
	}
	for name, steps := range map[string][]step{
		"nobody renews": {
			{at: s(1)}, {at: s(2)}, {at: s(2.9)}, {at: s(3), over: []uint64{1, 2}},
		},
		"one renews": {
			{at: s(1), renewed: []uint64{1}}, {at: s(2)}, {at: s(3), over: []uint64{2}}, {at: s(3.9), over: []uint64{2}}, {at: s(4), over: []uint64{1, 2}},
		},
		"a step that is late by less than half a lease is none": {
			{at: s(1)}, {at: s(2.4)}, {at: s(3.8), over: []uint64{1, 2}},
		},
		"the proxy stood still for a minute": {
			{at: s(1)}, {at: s(61), stood: s(60)}, {at: s(62)}, {at: s(63)}, {at: s(63.9)}, {at: s(64), over: []uint64{1, 2}},
		},
		"and heard of one afterwards": {
			{at: s(1)}, {at: s(61), stood: s(60)}, {at: s(62), renewed: []uint64{2}}, {at: s(63)}, {at: s(64), over: []uint64{1}},
		},
		"it stood still twice": {
			{at: s(1)}, {at: s(31), stood: s(30)}, {at: s(61), stood: s(30)}, {at: s(62)}, {at: s(63)}, {at: s(64), over: []uint64{1, 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewTerms(0, ttl)
			m.Grant(0, 1)
			m.Grant(0, 2)
			for _, st := range steps {
				for _, lease := range st.renewed {
					m.Grant(st.at, lease)
				}
				over, stood := m.Step(st.at)
				slices.Sort(over)
				if !slices.Equal(over, st.over) || stood != st.stood {
					t.Fatalf("at %v: %v are over and it stood for %v, want %v and %v", st.at, over, stood, st.over, st.stood)
				}
			}
			m.End(1)
			m.End(2)
			if over, _ := m.Step(m.pause.last + time.Second); over != nil {
				t.Errorf("%v are over after their end", over)
			}
		})
	}
}

// TestPauseBeat: step is called often enough that a gap is one.
func TestPauseBeat(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 3 * time.Second, time.Minute} {
		p, every := NewPause(0, ttl), Every(ttl)
		if every <= 0 || p.gap() < 2*every || every > ttl/10 {
			t.Errorf("leases of %v: a step every %v, a gap from %v", ttl, every, p.gap())
		}
	}
}
