package observe

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock"
)

// lateClock is a clock whose every third timer fires 8 ms late.
type lateClock struct {
	now   time.Duration
	sets  int
	limit time.Duration // it stops here
	stop  context.CancelFunc
}

func (c *lateClock) Now() time.Duration { return c.now }

func (c *lateClock) NewTimer() (clock.Timer, error) {
	return &lateTimerFake{c, make(chan struct{}, 1)}, nil
}

type lateTimerFake struct {
	c    *lateClock
	fire chan struct{}
}

func (t *lateTimerFake) C() <-chan struct{} { return t.fire }
func (t *lateTimerFake) Stop()              {}
func (t *lateTimerFake) Close() error       { return nil }

func (t *lateTimerFake) Set(at time.Duration) {
	if at > t.c.limit {
		t.c.stop()
		return
	}
	t.c.now = at
	if t.c.sets++; t.c.sets%3 == 0 {
		t.c.now += 8 * time.Millisecond
	}
	t.fire <- struct{}{}
}

// TestProbe: the schedule is absolute, and lateness does not shift it.
func TestProbe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	c := &lateClock{limit: time.Second, stop: stop}
	timer, _ := c.NewTimer()
	w := &Watch{clk: c}
	w.probe(ctx, timer)
	if len(w.late) != 100 {
		t.Errorf("%d wake-ups in a second, want 100", len(w.late))
	}
	d := &Disturbance{}
	d.lateness(w.late)
	d.Judge()
	if d.LateTimersPct != 33 || math.Abs(d.LateMeanMS-2.64) > 1e-9 || d.LateMaxMS != 8 || d.LateP90MS != 8 || len(d.Why) != 1 {
		t.Errorf("%+v", d)
	}
}

// TestLongPause: one pause is as many late wake-ups as it is long.
func TestLongPause(t *testing.T) {
	late := make([]float64, 990)
	for ms := 100.0; ms > 0; ms -= 10 {
		late = append(late, ms)
	}
	d := &Disturbance{}
	d.lateness(late)
	if d.LateTimersPct != 1 || d.LateMeanMS != 0.55 || d.LateMaxMS != 100 || d.LateP90MS != 0 {
		t.Errorf("%+v", d)
	}
	d = &Disturbance{}
	if d.lateness(nil); d.LateTimersPct != 0 {
		t.Errorf("nothing: %+v", d)
	}
}

func TestUsed(t *testing.T) {
	const took = 10 * time.Second
	before := Usage{cpus: 2, idle: time.Second, own: time.Second, steal: time.Second, waited: time.Second, waitedKnown: true}
	after := Usage{cpus: 2, idle: 11 * time.Second, own: 5 * time.Second, steal: 2 * time.Second, waited: 2 * time.Second, waitedKnown: true}
	c := Used(before, after, took, true)
	if c.CPUs != 2 || c.OwnPct != 20 || c.StealPct != 5 || c.OthersPct != 25 || c.RunDelayPct == nil || *c.RunDelayPct != 10 || !c.Daemons {
		t.Errorf("%+v, run delay %v", c, c.RunDelayPct)
	}
	d := &Disturbance{CPU: c}
	d.Judge()
	if len(d.Why) != 1 || !strings.Contains(d.Why[0], "hypervisor took 5.0 %") || d.Score() != 2.5 {
		t.Errorf("%q, score %v", d.Why, d.Score())
	}
	// Sums of ticks may miss the whole by some.
	after.waitedKnown = false
	after.idle = 30 * time.Second
	if c := Used(before, after, took, false); c.OthersPct != 0 || c.RunDelayPct != nil {
		t.Errorf("%+v", c)
	}
	// At the thresholds a row is not marked, beyond each it is. The others' share counts
	// only where the daemons are not among them.
	for why, d := range map[string]*Disturbance{
		"": {CPU: &CPUUse{StealPct: 2, OthersPct: 50, Daemons: true}, LateMeanMS: 0.5},
		"others used, but not known to be others": {CPU: &CPUUse{StealPct: 2, OthersPct: 99}, LateMeanMS: 0.5},
		"timers came 0.6 ms late":                 {LateMeanMS: 0.6},
		"hypervisor took 3.0 %":                   {CPU: &CPUUse{StealPct: 3}},
		"other programs used 51 %":                {CPU: &CPUUse{OthersPct: 51, Daemons: true}},
	} {
		d.Judge()
		if marked := why != "" && !strings.Contains(why, "not known"); marked != (len(d.Why) == 1) || marked != (d.Score() > 1) || marked && !strings.Contains(d.String(), why) {
			t.Errorf("%q: %q, score %v", why, d.Why, d.Score())
		}
	}
}
