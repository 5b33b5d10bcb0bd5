package transport_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/transporttest"
)

// The link's occupancy is exact: batches of one direction share it, an idle link starts at once,
// and the immediate comes when the batch is delivered.
func TestPacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Link: &pacing.Link{BytesPerSecond: segLen, Latency: time.Millisecond}})
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
		submit(transport.Write, segLen)     // shares the way out until 0.5 s, and has it alone until 1.25 s
		submit(transport.Write, segLen/4)   // until 0.5 s
		submit(transport.Read, 5*segLen/16) // the way in, until 0.3125 s
		<-time.After(312500 * time.Microsecond)
		synctest.Wait()
		if len(p.imms) != 0 || ended() != 0 {
			t.Errorf("at 312.5 ms, %d immediates and %d batches; the first is due at 313.5 ms", len(p.imms), ended())
		}
		<-time.After(time.Millisecond)
		synctest.Wait()
		if len(p.imms) != 1 || ended() != 1 {
			t.Errorf("at 313.5 ms, %d immediates and %d batches", len(p.imms), ended())
		}
		<-time.After(686500 * time.Microsecond)
		<-time.After(9 * time.Second)
		submit(transport.Write, segLen/2) // idle link: 10 s to 10.5 s
		<-time.After(time.Second)
		synctest.Wait()
		want := []time.Duration{313500 * time.Microsecond, 501 * time.Millisecond, 1251 * time.Millisecond, 10501 * time.Millisecond}
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
		p := newPair(t, transport.Config{Link: &pacing.Link{BytesPerSecond: segLen}})
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
		p := newPair(t, transport.Config{Link: &pacing.Link{BytesPerSecond: segLen}})
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

// A batch whose modelled network cannot be told of it fails, and says which file that is.
func TestPacingLedgerFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ledger")
	p := newPair(t, transport.Config{Link: &pacing.Link{BytesPerSecond: 1e12}, Ledger: file})
	if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{})); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("no line of it\n"); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	b := p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{})
	if err := wait(t, b); b.Status() != transport.Failed || err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("%v, %v", b.Status(), err)
	}
}
