package clock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimers(t *testing.T) {
	for name, c := range map[string]Clock{"std": Std(), "precise": Precise()} {
		t.Run(name, func(t *testing.T) {
			tm, err := c.NewTimer()
			if err != nil {
				t.Fatal(err)
			}
			defer tm.Close()
			at := c.Now() + 2*time.Millisecond
			tm.Set(at)
			<-tm.C()
			if now := c.Now(); now < at {
				t.Fatalf("fired at %v, set for %v", now, at)
			}
			tm.Set(c.Now() - time.Second) // a time that has passed
			<-tm.C()
			tm.Set(c.Now() + time.Hour)
			tm.Stop()
			select {
			case <-tm.C():
				t.Fatal("fired after Stop")
			default:
			}
		})
	}
}

func TestStdInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Std()
		tm, _ := c.NewTimer()
		defer tm.Close()
		tm.Set(time.Hour)
		<-tm.C()
		if got := c.Now(); got != time.Hour {
			t.Fatalf("woke at %v, want exactly 1h", got)
		}
	})
}

// BenchmarkLateness reports how late a 2 ms timer wakes its goroutine.
func BenchmarkLateness(b *testing.B) {
	for name, c := range map[string]Clock{"std": Std(), "precise": Precise()} {
		b.Run(name, func(b *testing.B) {
			tm, err := c.NewTimer()
			if err != nil {
				b.Fatal(err)
			}
			defer tm.Close()
			var late []time.Duration
			for b.Loop() {
				at := c.Now() + 2*time.Millisecond
				tm.Set(at)
				<-tm.C()
				late = append(late, c.Now()-at)
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Microseconds()), "p50-us-late")
			b.ReportMetric(float64(late[len(late)*99/100].Microseconds()), "p99-us-late")
		})
	}
}
