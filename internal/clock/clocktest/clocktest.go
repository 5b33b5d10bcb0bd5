// Package clocktest is for tests of things that take time: a [clock.Clock] that the test
// can stop, waits that end with the test at the latest, and a log that can be read while
// it is written. No wait measures speed, because the machine may be busy.
package clocktest

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/internal/clock"
)

// Patience bounds every wait for something that must happen.
const Patience = time.Minute

// Stoppable is a clock that stands still when it is told to, and with it whoever waits
// for a time of it. The zero value is stopped at 0 and has no timers.
type Stoppable struct {
	clock.Clock              // that goes on, nil if it never does
	at          atomic.Int64 // where it stands
	stands      atomic.Bool
}

// Now implements [clock.Clock].
func (c *Stoppable) Now() time.Duration {
	if c.Clock == nil || c.stands.Load() {
		return time.Duration(c.at.Load())
	}
	return c.Clock.Now()
}

// Stop makes the clock stand at a time.
func (c *Stoppable) Stop(at time.Duration) {
	c.at.Store(int64(at))
	c.stands.Store(true)
}

// Go lets it run again.
func (c *Stoppable) Go() { c.stands.Store(false) }

// Receive takes the next value, or fails the test if there is none in time.
func Receive[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(Patience):
		t.Fatalf("%s: nothing for %v", what, Patience)
		panic("unreachable")
	}
}

// Until waits until cond holds, or fails the test if that takes too long.
func Until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	if !within(Patience, cond) {
		t.Fatalf("waited %v for %s", Patience, what)
	}
}

// Growing calls try with times that double until it is satisfied: how much a busy machine
// gets done in a short time is not known.
func Growing(t testing.TB, from time.Duration, try func(d time.Duration) (enough bool)) {
	t.Helper()
	for d := from; !try(d); d *= 2 {
		if d > Patience {
			t.Fatalf("not within %v", d)
		}
	}
}

// Goroutines waits for as many as there were: those of a closed connection end a moment
// after it.
func Goroutines(t testing.TB, want int) {
	t.Helper()
	if !within(Patience, func() bool { return runtime.NumGoroutine() <= want }) {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, %d at the start:\n%s", runtime.NumGoroutine(), want, stacks[:runtime.Stack(stacks, true)])
	}
}

// within reports whether cond came to hold in time.
func within(d time.Duration, cond func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(d)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			return false
		}
	}
	return true
}
