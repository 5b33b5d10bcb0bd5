package transport

import (
	"testing"
	"time"
)

// The defaults are those that Config documents, and leave alone what is set.
func TestDefaults(t *testing.T) {
	var c Config
	c.setDefaults()
	if c.Clock == nil || c.Logger == nil || c.Select != Affinity || c.SliceSize != 1<<20 || c.Retries != 0 {
		t.Errorf("%+v", c)
	}
	own := Config{
		DefaultTimeout: 1, DialTimeout: 2, BackoffMin: 3, BackoffMax: 4, CancelGrace: 5, IdleTimeout: 6, StallTimeout: 7, ProbeInterval: 8,
		Select: Single, SliceSize: 9,
	}
	own.setDefaults()
	if own.Select != Single || own.SliceSize != 9 {
		t.Errorf("%+v", own)
	}
	for _, d := range []struct {
		name           string
		have, want     time.Duration
		kept, keptWant time.Duration
	}{
		{"DefaultTimeout", c.DefaultTimeout, 30 * time.Second, own.DefaultTimeout, 1},
		{"DialTimeout", c.DialTimeout, 5 * time.Second, own.DialTimeout, 2},
		{"BackoffMin", c.BackoffMin, 5 * time.Millisecond, own.BackoffMin, 3},
		{"BackoffMax", c.BackoffMax, time.Second, own.BackoffMax, 4},
		{"CancelGrace", c.CancelGrace, 100 * time.Millisecond, own.CancelGrace, 5},
		{"IdleTimeout", c.IdleTimeout, time.Minute, own.IdleTimeout, 6},
		{"StallTimeout", c.StallTimeout, 300 * time.Millisecond, own.StallTimeout, 7},
		{"ProbeInterval", c.ProbeInterval, 250 * time.Millisecond, own.ProbeInterval, 8},
	} {
		if d.have != d.want || d.kept != d.keptWant {
			t.Errorf("%s is %v by default, want %v; %v where it is set, want %v", d.name, d.have, d.want, d.kept, d.keptWant)
		}
	}
}
