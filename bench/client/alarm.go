package client

import (
	"context"
	"time"

	"kvferry/internal/clock"
)

// An alarm wakes whoever sends when it is time, on an idle CPU and on a busy one. The clock's
// timer is a descriptor: on an idle CPU it is the most precise that there is, 0.1 ms, where
// Go's own timers are a millisecond late. But Go looks at descriptors when nothing else is to
// do, or after 10 ms, and at its own timers each time it chooses what runs next: with
// GOMAXPROCS=1 and ten thousand streams the descriptor was 10 ms late, and Go's timer is not.
// So there are both, and the first counts.
type alarm struct {
	clock clock.Clock
	timer clock.Timer
	soon  *time.Timer
}

func (c *Client) newAlarm() (*alarm, error) {
	timer, err := c.clock.NewTimer()
	if err != nil {
		return nil, err
	}
	a := &alarm{clock: c.clock, timer: timer, soon: time.NewTimer(time.Hour)}
	a.soon.Stop()
	return a, nil
}

func (a *alarm) close() {
	a.soon.Stop()
	_ = a.timer.Close() // a descriptor that nothing was written to
}

// set arms the alarm for a time of the clock. Either channel may wake early, by what was set
// before: ask the clock.
func (a *alarm) set(at time.Duration) (<-chan struct{}, <-chan time.Time) {
	a.timer.Set(at)
	a.soon.Reset(max(at-a.clock.Now(), 0))
	return a.timer.C(), a.soon.C
}

// wait returns at the given time of the clock, or with ctx's error.
func (a *alarm) wait(ctx context.Context, at time.Duration) error {
	for a.clock.Now() < at {
		due, busy := a.set(at)
		select {
		case <-due:
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}
