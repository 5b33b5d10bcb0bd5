package lab

import (
	"context"
	"fmt"
	"strings"
	"time"

	"kvferry/lab/wire"
)

// A Flap is a cable that is out for a time, again and again. The zero value is one that stays.
type Flap struct {
	Every time.Duration // from one time to the next
	Out   time.Duration // how long, at the end of it
}

// leastFlap is what changing a link's carrier takes on a busy machine, with room.
const leastFlap = 10 * time.Millisecond

// ParseFlap reads 2s, of which the last tenth is out, or 2s/500ms.
func ParseFlap(text string) (f Flap, err error) {
	every, out, given := strings.Cut(text, "/")
	if f.Every, err = time.ParseDuration(every); err == nil {
		if f.Out = f.Every / 10; given {
			f.Out, err = time.ParseDuration(out)
		}
	}
	if err != nil || f.Out < leastFlap || f.Out > f.Every-leastFlap {
		return Flap{}, fmt.Errorf("%q: write how often the cable goes and how long, as 2s or 2s/500ms: out and in for %v or more", text, leastFlap)
	}
	return f, nil
}

// ParseFlaps reads one for all of n links, or one for each, of which 0 is none.
func ParseFlaps(text string, n int) (flaps []Flap, err error) {
	values, err := wire.Each(text, n)
	if err != nil {
		return nil, fmt.Errorf("%w, 0 for none", err)
	}
	for _, v := range values {
		f := Flap{}
		if v != "0" && v != "0s" {
			if f, err = ParseFlap(v); err != nil {
				return nil, err
			}
		}
		flaps = append(flaps, f)
	}
	return flaps, nil
}

// Run has the cable go and come until ctx is over.
func (f Flap) Run(ctx context.Context, plug func(in bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	next := time.Now()
	for in := true; ; in = !in {
		if next = next.Add(f.Out); in {
			next = next.Add(f.Every - 2*f.Out)
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
			plug(!in)
		case <-ctx.Done():
			return
		}
	}
}
