package nics

import (
	"context"
	"errors"

	"kvferry/bench/observe"
	"kvferry/internal/clock"
	lab "kvferry/lab/nics"
)

// inLab runs do in a lab of its own, and what do returned once it is known what the machine did
// meanwhile; spins says that it has the CPUs busy in any case. What the machine disturbed is measured once more.
func inLab(ctx context.Context, cfg lab.Config, spins bool, do func(context.Context, *lab.Lab) (func(Notice), error)) error {
	once := func() (why string, err error) {
		watch, err := observe.StartWatch(clock.Std(), nil)
		if err != nil {
			return "", err
		}
		l, err := lab.Start(ctx, cfg)
		if err != nil {
			_, _ = watch.End()
			return "", err
		}
		defer l.Close()
		keep, err := do(ctx, l)
		d, e := watch.End()
		if err = errors.Join(err, e); err != nil {
			return "", err
		}
		n, err := notice(l, d, spins)
		if err == nil {
			keep(n)
		}
		return n.Why, err
	}
	why, err := once()
	if err == nil && why != "" {
		_, err = once()
	}
	return err
}
