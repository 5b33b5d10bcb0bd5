package lab

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseFlaps(t *testing.T) {
	got, err := ParseFlaps("2s, 0,1s/300ms", 3)
	if want := []Flap{{2 * time.Second, 200 * time.Millisecond}, {}, {time.Second, 300 * time.Millisecond}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseFlaps("2s", 2); err != nil || len(got) != 2 || got[0] != got[1] {
		t.Errorf("one for all: %v, %v", got, err)
	}
	for _, text := range []string{"", "2", "-2s", "2s/0s", "50ms", "2s/1995ms", "2s,2s", "2s/x"} {
		if got, err := ParseFlaps(text, 3); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestFlap: the cable is out at the end of each period, and the times do not drift.
func TestFlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var out, in []time.Duration
		over := make(chan struct{})
		go func() {
			defer close(over)
			Flap{2 * time.Second, 500 * time.Millisecond}.Run(ctx, func(plugged bool) {
				at := time.Since(began)
				<-time.NewTimer(7 * time.Millisecond).C // what the change itself takes
				if plugged {
					in = append(in, at)
				} else {
					out = append(out, at)
				}
			})
		}()
		<-time.NewTimer(4200 * time.Millisecond).C
		cancel()
		<-over
		if want := []time.Duration{1500 * time.Millisecond, 3500 * time.Millisecond}; !slices.Equal(out, want) {
			t.Errorf("out at %v, want %v", out, want)
		}
		if want := []time.Duration{2 * time.Second, 4 * time.Second}; !slices.Equal(in, want) {
			t.Errorf("in at %v, want %v", in, want)
		}
	})
}
