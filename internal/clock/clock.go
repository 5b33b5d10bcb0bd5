// Package clock is the one source of time for everything that waits.
//
// Go's own timers are rounded up to the millisecond by the network poller:
// time.Sleep(10 ms) returns 0.6 to 0.9 ms late on an idle Linux machine, which
// is 7 % of a decode step. A Timer from Precise is a timerfd read through the
// same poller: an expiry is a ready descriptor, so it wakes its goroutine
// within about 0.1 ms and pins no thread. Std keeps to package time and is what
// tests inside a testing/synctest bubble use.
//
// Times are monotonic durations since the clock's own start, so a schedule is
// arithmetic on time.Duration and never mixes two clocks.
package clock

import "time"

// A Clock tells the time and makes timers.
type Clock interface {
	// Now is the monotonic time since the clock's start.
	Now() time.Duration
	// NewTimer returns a stopped timer.
	NewTimer() (Timer, error)
}

// A Timer fires on C at or after the time it was last set to. It is for one
// goroutine: Set, Stop and receiving from C must not overlap. A fire that was
// under way when Set or Stop was called may still be received, so a receiver
// compares Now with the time it wants.
type Timer interface {
	// C receives a value each time the timer fires. Its buffer is one; a fire
	// finding it full is dropped.
	C() <-chan struct{}
	// Set arms the timer for at; a time that has passed fires at once.
	Set(at time.Duration)
	// Stop disarms the timer.
	Stop()
	// Close releases the timer. It must not be used afterwards.
	Close() error
}

// Std returns a clock over package time, started now.
func Std() Clock { return &std{start: time.Now()} }

type std struct{ start time.Time }

func (c *std) Now() time.Duration { return time.Since(c.start) }

func (c *std) NewTimer() (Timer, error) {
	t := &stdTimer{clock: c, c: make(chan struct{}, 1)}
	return t, nil
}

type stdTimer struct {
	clock *std
	c     chan struct{}
	t     *time.Timer
}

func (t *stdTimer) C() <-chan struct{} { return t.c }

func (t *stdTimer) Set(at time.Duration) {
	d := max(at-t.clock.Now(), 0)
	if t.t != nil {
		t.t.Reset(d)
		return
	}
	t.t = time.AfterFunc(d, func() {
		select {
		case t.c <- struct{}{}:
		default:
		}
	})
}

func (t *stdTimer) Stop() {
	if t.t != nil {
		t.t.Stop()
	}
}

func (t *stdTimer) Close() error {
	t.Stop()
	return nil
}
