package transport_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

func TestParseLink(t *testing.T) {
	for _, c := range []struct {
		in   string
		want transport.Link
	}{
		{"rate=1.29GB/s,latency=10us", transport.Link{BytesPerSecond: 1.29e9, Latency: 10 * time.Microsecond}},
		{" latency=1ms , rate=250MB/s,name=eth", transport.Link{Name: "eth", BytesPerSecond: 250e6, Latency: time.Millisecond}},
		{"rate=100gbit", transport.Link{BytesPerSecond: 12.5e9}},
		{"rate=2.5Gbit,latency=1us", transport.Link{BytesPerSecond: 312.5e6, Latency: time.Microsecond}},
		{"rate=1234567B/s", transport.Link{BytesPerSecond: 1234567}},
		{"rate=1B/s", transport.Link{BytesPerSecond: 1}},
	} {
		l, err := transport.ParseLink(c.in)
		if err != nil || *l != c.want {
			t.Errorf("%q: %+v, %v", c.in, l, err)
			continue
		}
		if back, err := transport.ParseLink(l.String()); err != nil || *back != *l {
			t.Errorf("%q prints as %q, which reads %+v, %v", c.in, l, back, err)
		}
	}
	for rate, want := range map[float64]string{
		1.29e9: "1.29GB/s", 1e9: "1GB/s", 999e6: "999MB/s", 5e3: "5kB/s", 7: "7B/s", 12.5e12: "12.5TB/s",
	} {
		l := transport.Link{Name: "x", BytesPerSecond: rate, Latency: time.Millisecond}
		if got := l.String(); got != "name=x,rate="+want+",latency=1ms" {
			t.Errorf("%v B/s prints as %s, want %s", rate, got, want)
		}
	}
	for in, says := range map[string]string{
		"":                            "key=value",
		"rate=5":                      "no unit",
		"rate=xGB/s":                  `"x" is no number`,
		"rate=fastgbit":               `"fast" is no number`,
		"rate=NaNGB/s":                `"NaN" is no number`,
		"rate=InfGB/s":                `"Inf" is no number`,
		"rate=-1gbit":                 `"-1" is no number from 0`,
		"rate=0GB/s":                  "rate: 0: use 1 B/s or more",
		"latency=10us":                "no rate: write rate=",
		"rate=1GB/s,latency=-1us":     "latency: -1µs: use 0s to 1h0m0s",
		"rate=1GB/s,latency=5":        `latency: "5": write a time with its unit`,
		"rate=0B/s,latency=-1us":      "rate: 0: use 1 B/s or more, like rate=1.29GB/s; latency: -1µs",
		"rate=1GB/s,rate=2GB/s":       "twice",
		"rate=1GB/s,speed=2":          "unknown key",
		"rate=1GB/s,latency=tomorrow": "latency",
	} {
		if l, err := transport.ParseLink(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want an error that says %q", in, l, err, says)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add("rate=1.29GB/s,latency=10us")
	f.Add("name=x,rate=3kB/s")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := transport.ParseLink(s)
		if err != nil {
			return
		}
		if back, err := transport.ParseLink(l.String()); err != nil || *back != *l {
			t.Fatalf("%q prints as %q, which reads %v, %v", s, l, back, err)
		}
	})
}

// The link's occupancy is exact: batches follow each other first in, first
// out, an idle link starts at once, and the immediate comes when the batch is
// delivered.
func TestPacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Link: &transport.Link{BytesPerSecond: segLen, Latency: time.Millisecond}})
		start := time.Now()
		var mu sync.Mutex
		var ends []time.Duration
		ended := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(ends)
		}
		submit := func(op transport.Op, bytes int) {
			reqs := []transport.Request{{Op: op, Local: p.local.Bytes()[:bytes]}}
			p.a.Submit(p.target, reqs, transport.BatchOptions{
				HasImm: true,
				OnDone: func(b *transport.Batch) {
					mu.Lock()
					defer mu.Unlock()
					ends = append(ends, time.Since(start))
					if b.Err() != nil {
						t.Error(b.Err())
					}
					if b.Completed() != time.Since(start) {
						t.Errorf("completed at %v, now is %v", b.Completed(), time.Since(start))
					}
				},
			})
		}
		submit(transport.Write, segLen)   // 0 s to 1 s
		submit(transport.Read, segLen/2)  // 1 s to 1.5 s
		submit(transport.Write, segLen/4) // 1.5 s to 1.75 s
		<-time.After(time.Second)
		synctest.Wait()
		if len(p.imms) != 0 || ended() != 0 {
			t.Errorf("at 1 s, %d immediates and %d batches; the first is due at 1.001 s", len(p.imms), ended())
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		if len(p.imms) != 1 || ended() != 1 {
			t.Errorf("at 1.001 s, %d immediates and %d batches", len(p.imms), ended())
		}
		<-time.After(9 * time.Second)
		submit(transport.Write, segLen/2) // idle link: 10.001 s to 10.501 s
		<-time.After(time.Second)
		synctest.Wait()
		want := []time.Duration{1001 * time.Millisecond, 1501 * time.Millisecond, 1751 * time.Millisecond, 10502 * time.Millisecond}
		if ended() != len(want) {
			t.Fatalf("ended at %v, want %v", ends, want)
		}
		for i := range want {
			if ends[i] != want[i] {
				t.Errorf("batch %d ended at %v, want %v", i, ends[i], want[i])
			}
		}
	})
}

// Bytes that really take longer than the link hold the batch until they are
// there; a deadline beats the link.
func TestPacingIsNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Link: &transport.Link{BytesPerSecond: segLen}})
		p.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.Delay, Delay: 5 * time.Second})
		start := time.Now()
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		b := p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{Timeout: time.Second / 2, HasImm: true})
		<-b.Done()
		if b.Status() != transport.TimedOut || time.Since(start) != 5500*time.Millisecond {
			t.Errorf("%v after %v", b.Status(), time.Since(start))
		}
		<-time.After(time.Second)
		synctest.Wait()
		if len(p.imms) != 0 {
			t.Error("the immediate of a batch that timed out")
		}
	})
}

// A caller that woke late says so, and the link counts from when it was due; it
// is never counted from the future.
func TestPacingSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Link: &transport.Link{BytesPerSecond: segLen}})
		whole := []transport.Request{{Op: transport.Read, Local: p.local.Bytes()}}
		<-time.After(time.Second)
		b := p.a.Submit(p.target, whole, transport.BatchOptions{Since: 900 * time.Millisecond})
		<-b.Done()
		if want := 1900 * time.Millisecond; b.Due() != want || b.Completed() != want {
			t.Errorf("due at %v, completed at %v, want %v", b.Due(), b.Completed(), want)
		}
		b = p.a.Submit(p.target, whole, transport.BatchOptions{Since: time.Hour})
		<-b.Done()
		if want := 2900 * time.Millisecond; b.Due() != want {
			t.Errorf("due at %v, want %v", b.Due(), want)
		}
	})
}
