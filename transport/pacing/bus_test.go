package pacing

import (
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
)

// TestBus: what a joined link sends shares the way out of the GPU's memory with what goes to host
// memory, and nothing else; the disk reads and writes at one rate together. A link that is not
// joined shares nothing.
func TestBus(t *testing.T) {
	for _, joined := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b, err := NewBus(100, 50, clock.Std())
			if err != nil {
				t.Fatal(err)
			}
			link := &Link{BytesPerSecond: 100, Latency: time.Second / 2}
			if joined {
				link = b.Join(link)
			}
			p, err := New(*link, "", clock.Std(), []rail(nil))
			if err != nil {
				t.Fatal(err)
			}
			stop, over := make(chan struct{}), make(chan struct{}, 2)
			for _, run := range []func(<-chan struct{}){b.Run, p.Run} {
				go func() {
					run(stop)
					over <- struct{}{}
				}()
			}
			began := time.Now()
			type end struct{ by, at time.Duration }
			ended := make(chan end, 8)
			now := b.network.clock.Now()
			copied := func(way Way) {
				b.Copy(now, 0, 100, way, func(at time.Duration) { ended <- end{at - now, time.Since(began)} })
			}
			copied(Up)
			copied(Down)
			copied(Disk)
			copied(Disk)
			d, err := p.Move(now, 0, 100, false, "")
			if err != nil || !d.Held(func() { ended <- end{d.At() - now, time.Since(began)} }) {
				t.Fatal("over at once", err)
			}
			want := []time.Duration{1e9, 2e9, 2.5e9, 4e9, 4e9} // down; up; the link's, with its latency; the disk's
			if !joined {
				want[1], want[2] = 1e9, 1.5e9
			}
			for i, w := range want {
				e := <-ended
				if off := e.by - w; off < 0 || off > time.Microsecond || e.at < e.by || e.at > e.by+time.Millisecond {
					t.Errorf("joined %t: end %d by %v at %v, want %v", joined, i, e.by, e.at, w)
				}
			}
			close(stop)
			<-over
			<-over
			b.Close()
		})
	}
	var none *Bus
	if link := (&Link{BytesPerSecond: 1}); none.Join(link) != link || new(Bus).Join(nil) != nil {
		t.Error("a bus is where none should be")
	}
}
