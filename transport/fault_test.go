package transport_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/pacing"
	"kvferry/transport/transporttest"
)

// A lost connection is made again and its slices sent again; the batch and its
// immediate end well, whether the lost slice had been applied or not.
func TestRetry(t *testing.T) {
	for _, kind := range []transporttest.Kind{transporttest.Cut, transporttest.CutAfter} {
		for slice := 1; slice <= 8; slice++ { // the last has the immediate
			synctest.Test(t, func(t *testing.T) {
				p := newPair(t, transport.Config{})
				p.rail.Inject(transporttest.Fault{Slice: slice, Kind: kind})
				b := p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{Imm: 7, HasImm: true})
				if err := wait(t, b); err != nil {
					t.Fatalf("%s at %d: %v", kind, slice, err)
				}
				if len(p.imms) != 1 || !bytes.Equal(p.local.Bytes(), p.remote.Bytes()) {
					t.Errorf("%s at %d: %d immediates", kind, slice, len(p.imms))
				}
				st := p.a.Rails()[0]
				known := kind == transporttest.CutAfter && slice == 8 // all was applied, as the target says
				if (st.Retries == 0) != known || st.Immediates != 1 || st.Dials != 2 || st.Conns != 1 || st.InFlight != 0 ||
					st.Posted != st.Write.Slices+st.Errors || st.Write.Bytes != segLen {
					t.Errorf("%s at %d: %+v", kind, slice, st)
				}
				if known && p.b.Rails()[0].ImmRepeats != 1 {
					t.Errorf("the repeated immediate was not noticed: %+v", p.b.Rails()[0])
				}
			})
		}
	}
}

func TestRetriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Retries: 2})
		for i := 1; i < 10; i++ {
			p.rail.Inject(transporttest.Fault{Slice: i, Kind: transporttest.Cut})
		}
		err := wait(t, p.a.Submit(p.target, p.reqs(transport.Write, 1), transport.BatchOptions{}))
		if !errors.Is(err, transport.ErrUnreachable) || p.rail.Carried() != 3 {
			t.Errorf("%v after %d tries", err, p.rail.Carried())
		}
	})
}

// A refusal is final, and fails the batch at once.
func TestRefusalIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		p.rail.Inject(transporttest.Fault{Slice: 3, Kind: transporttest.Fail, Err: transport.ErrBounds})
		start := time.Now()
		err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 8), transport.BatchOptions{Tag: "cmpl-1", Imm: 1, HasImm: true}))
		var e *transport.Error
		if !errors.Is(err, transport.ErrBounds) || !errors.As(err, &e) || e.Rail != "mem/a" || e.Peer != "b" || e.Tag != "cmpl-1" || e.Op != "read" {
			t.Errorf("error %#v", err)
		}
		if time.Since(start) != 0 || len(p.imms) != 0 {
			t.Errorf("took %v, %d immediates", time.Since(start), len(p.imms))
		}
		if err := p.remote.Close(); err != nil {
			t.Fatal(err)
		}
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 8), transport.BatchOptions{})); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("deregistered target: %v", err)
		}
	})
}

// A black hole ends in ErrDeadline at the deadline exactly, gives the memory
// back, and harms no other batch.
func TestDeadline(t *testing.T) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, transport.Config{})
			p.rail.Inject(transporttest.Fault{Slice: 5, Kind: transporttest.Stall})
			start := time.Now()
			var timed, other time.Duration
			b := p.a.Submit(p.target, p.reqs(op, 8), transport.BatchOptions{
				Timeout: 3 * time.Second,
				OnDone:  func(*transport.Batch) { timed = time.Since(start) },
			})
			c := p.a.Submit(p.target, p.reqs(op, 8), transport.BatchOptions{
				Deadline: start.Add(time.Minute),
				OnDone:   func(*transport.Batch) { other = time.Since(start) },
			})
			err := wait(t, b)
			clear(p.local.Bytes()[:segLen/2]) // ours again: the race detector watches
			if !errors.Is(err, transport.ErrDeadline) || !errors.Is(err, context.DeadlineExceeded) || b.Status() != transport.TimedOut {
				t.Errorf("%v: %v, %v", op, b.Status(), err)
			}
			if err := wait(t, c); err != nil {
				t.Errorf("%v: the batch behind it: %v", op, err)
			}
			synctest.Wait()
			if timed != 3*time.Second || other < timed || other > 4*time.Second {
				t.Errorf("%v: ended after %v and %v", op, timed, other)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		synctest.Wait()
		p.b.Close()
		b := p.a.Submit(p.target, p.reqs(transport.Write, 2), transport.BatchOptions{Timeout: 10 * time.Second})
		err := wait(t, b)
		if !errors.Is(err, transport.ErrDeadline) || !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("peer is gone: %v", err)
		}
		if n := p.rail.Dials(); n < 10 || n > 30 {
			t.Errorf("%d dials in 10 s of backing off", n)
		}
		// The peer comes back under the same address.
		p.b = engine(t, transport.Config{Rails: []transport.Rail{p.net.Rail("b")}, Clock: clock.Std()})
		p.remote = register(t, p.b, "remote", segLen)
		p.open()
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Write, 2), transport.BatchOptions{Timeout: 10 * time.Second})); err != nil {
			t.Errorf("peer is back: %v", err)
		}
		// A dial that hangs is bounded by the batch's deadline too.
		p.net.BlackHole("b", true)
		p.rail.Inject(transporttest.Fault{Slice: p.rail.Carried() + 1, Kind: transporttest.Cut})
		start := time.Now()
		err = wait(t, p.a.Submit(p.target, p.reqs(transport.Write, 2), transport.BatchOptions{Timeout: time.Second}))
		if !errors.Is(err, transport.ErrDeadline) || time.Since(start) != time.Second {
			t.Errorf("hanging dial: %v after %v", err, time.Since(start))
		}
	})
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{CancelGrace: 10 * time.Millisecond})
		p.rail.Inject(transporttest.Fault{Slice: 3, Kind: transporttest.Stall})
		start := time.Now()
		b := p.a.Submit(p.target, p.reqs(transport.Read, 8), transport.BatchOptions{HasImm: true})
		synctest.Wait()
		b.Cancel()
		b.Cancel()
		if err := wait(t, b); !errors.Is(err, transport.ErrCanceled) || !errors.Is(err, context.Canceled) || b.Status() != transport.Canceled {
			t.Errorf("%v, %v", b.Status(), err)
		}
		if d := time.Since(start); d != 10*time.Millisecond || len(p.imms) != 0 {
			t.Errorf("took %v, %d immediates", d, len(p.imms))
		}
		done := p.a.Submit(p.target, p.reqs(transport.Read, 8), transport.BatchOptions{})
		if err := wait(t, done); err != nil {
			t.Fatal(err)
		}
		done.Cancel()
		if done.Status() != transport.Completed {
			t.Error("canceled after it had completed")
		}
	})
}

// A slow connection is not a dead one: what a canceled batch has posted on it runs
// out, and the batch beside it does not notice.
func TestCancelSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{CancelGrace: 10 * time.Millisecond})
		p.rail.SetRate(segLen / 48e-3) // a slice takes 6 ms
		start := time.Now()
		b := p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{})
		c := p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{})
		synctest.Wait()
		b.Cancel()
		if err := wait(t, b); !errors.Is(err, transport.ErrCanceled) || time.Since(start) != 48*time.Millisecond {
			t.Errorf("canceled: %v after %v", err, time.Since(start))
		}
		if err := wait(t, c); err != nil || time.Since(start) != 96*time.Millisecond {
			t.Errorf("the other: %v after %v", err, time.Since(start))
		}
		if st := p.a.Rails()[0]; st.Dials != 1 || st.Resent != 0 {
			t.Errorf("the connection was given up: %+v", st)
		}

		// It stalls in the middle of what was canceled.
		p.rail.Inject(transporttest.Fault{Slice: 16 + 4, Kind: transporttest.Stall})
		start = time.Now()
		b = p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{})
		synctest.Wait()
		b.Cancel()
		if err := wait(t, b); !errors.Is(err, transport.ErrCanceled) || time.Since(start) != 3*6*time.Millisecond+10*time.Millisecond {
			t.Errorf("canceled: %v after %v", err, time.Since(start))
		}
	})
}

// An immediate whose connection was lost before anybody knew that it had come finds
// the segment closed when it is sent again, by a target that had all it waited for:
// that is told from a segment that was closed before.
func TestUnconfirmed(t *testing.T) {
	for _, kind := range []transporttest.Kind{transporttest.Cut, transporttest.CutAfter} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, transport.Config{})
			synctest.Wait()                                          // connected
			p.net.BlackHole("b", true)                               // and not again so soon
			p.rail.Inject(transporttest.Fault{Slice: 8, Kind: kind}) // with the immediate
			b := p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{Imm: 7, HasImm: true})
			synctest.Wait()
			if came := len(p.imms) == 1; came != (kind == transporttest.CutAfter) {
				t.Fatalf("%s: %d immediates", kind, len(p.imms))
			}
			if err := p.remote.Close(); err != nil {
				t.Fatal(err)
			}
			p.net.BlackHole("b", false)
			if err := wait(t, b); !errors.Is(err, transport.ErrUnconfirmed) || !errors.Is(err, transport.ErrBadKey) {
				t.Errorf("%s: %v", kind, err)
			}
			for _, n := range []int{0, 8} { // at once, without data and with
				b := p.a.Submit(p.target, p.reqs(transport.Write, 8)[:n], transport.BatchOptions{Imm: 8, HasImm: true})
				if err := wait(t, b); errors.Is(err, transport.ErrUnconfirmed) || !errors.Is(err, transport.ErrBadKey) {
					t.Errorf("sent once: %v", err)
				}
			}
		})
	}
}

// A part of a message that others come after is sent again, too; finding the segment closed it says that the
// message has not come, as its last part was not sent yet.
func TestPartIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		synctest.Wait()
		p.net.BlackHole("b", true)
		p.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.CutAfter})
		b := p.a.Submit(p.target, nil, transport.BatchOptions{Message: make([]byte, 2*transport.MaxText)})
		synctest.Wait()
		if err := p.remote.Close(); err != nil {
			t.Fatal(err)
		}
		p.net.BlackHole("b", false)
		if err := wait(t, b); errors.Is(err, transport.ErrUnconfirmed) || !errors.Is(err, transport.ErrBadKey) {
			t.Error(err)
		}
		if st := p.a.Rails()[0]; st.Retries == 0 {
			t.Errorf("no part was sent again: %+v", st)
		}
	})
}

func TestCloseInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{Link: &pacing.Link{BytesPerSecond: segLen}})
		p.rail.Inject(transporttest.Fault{Slice: 12, Kind: transporttest.Stall})
		var batches []*transport.Batch
		for range 5 { // one held by the link, one stalled, others queued
			batches = append(batches, p.a.Submit(p.target, p.reqs(transport.Write, 8), transport.BatchOptions{}))
		}
		synctest.Wait()
		go p.a.Close()
		if err := p.a.Close(); err != nil {
			t.Error(err)
		}
		for i, b := range batches {
			select {
			case <-b.Done():
			default:
				t.Fatalf("batch %d outlives Close", i)
			}
			if !errors.Is(b.Err(), net.ErrClosed) {
				t.Errorf("batch %d: %v", i, b.Err())
			}
		}
		if err := p.local.Close(); err != nil {
			t.Errorf("segment after its engine: %v", err)
		}
		if _, err := p.a.Register("late", make([]byte, 1), ""); !errors.Is(err, net.ErrClosed) {
			t.Errorf("register after Close: %v", err)
		}
		if _, err := p.a.Open(p.remote.Info()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("open after Close: %v", err)
		}
	})
	// That the bubble ended says that no goroutine of the engines is left.
}

// Segment.Close waits for the batches that use it.
func TestSegmentClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		p.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.Delay, Delay: time.Second})
		b := p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})
		start := time.Now()
		synctest.Wait()
		if err := p.local.Close(); err != nil {
			t.Fatal(err)
		}
		clear(p.local.Bytes())
		if time.Since(start) != time.Second || b.Err() != nil {
			t.Errorf("closed after %v, batch %v", time.Since(start), b.Err())
		}
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrNotRegistered) {
			t.Errorf("memory of a closed segment: %v", err)
		}
	})
}

// Connections nobody uses are closed, and made again when wanted.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{IdleTimeout: time.Second})
		synctest.Wait()
		if st := p.a.Rails()[0]; st.Conns != 1 {
			t.Fatalf("Open connects in the background: %+v", st)
		}
		p.target.Close()
		<-time.After(999 * time.Millisecond)
		if st := p.a.Rails()[0]; st.Conns != 1 {
			t.Errorf("closed early: %+v", st)
		}
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		if st := p.a.Rails()[0]; st.Conns != 0 {
			t.Errorf("not closed: %+v", st)
		}
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("closed target: %v", err)
		}
		p.open()
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); err != nil {
			t.Error(err)
		}
	})
}

// Random faults on two rails: every batch ends once, by its deadline; those
// that completed have moved their bytes and their immediates came once; the
// accounts add up.
func TestRandomFaults(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			n := transporttest.NewNetwork()
			rails := []*transporttest.Rail{n.Rail("a0"), n.Rail("a1")}
			for _, r := range rails {
				r.Depth = 1 + rng.IntN(20)
				for i := 1; i < 2000; i += 1 + rng.IntN(60) {
					r.Inject(transporttest.Fault{
						Slice: i, Delay: time.Duration(rng.IntN(1e8)),
						Kind: []transporttest.Kind{transporttest.Cut, transporttest.CutAfter, transporttest.Stall, transporttest.Delay}[rng.IntN(4)],
					})
				}
			}
			var delivered [200]int
			a := engine(t, transport.Config{Rails: []transport.Rail{rails[0], rails[1]}, Clock: clock.Std(), SliceSize: 512})
			b := engine(t, transport.Config{
				Rails: []transport.Rail{n.Rail("b0"), n.Rail("b1")}, Clock: clock.Std(),
				OnImmediate: func(i transport.Immediate) { delivered[i.Value]++ },
			})
			local, remote := register(t, a, "local", segLen), register(t, b, "remote", segLen)
			tgt, err := a.Open(remote.Info())
			if err != nil {
				t.Fatal(err)
			}
			var bytes int64
			ended := make(map[uint64]int)
			for i := range uint64(200) {
				at, size := rng.IntN(segLen/2), 1+rng.IntN(4096)
				timeout := time.Duration(1 + rng.IntN(3e9))
				start := time.Now()
				batch := a.Submit(tgt, []transport.Request{{Op: transport.Op(rng.IntN(2)), Local: local.Bytes()[at : at+size], Offset: int64(at)}},
					transport.BatchOptions{Timeout: timeout, Imm: i, HasImm: true, OnDone: func(*transport.Batch) { ended[i]++ }})
				if rng.IntN(8) == 0 {
					batch.Cancel()
				}
				<-batch.Done()
				if d := time.Since(start); d > timeout {
					t.Errorf("seed %d: batch %d ended after %v of %v", seed, i, d, timeout)
				}
				synctest.Wait()
				if batch.Err() == nil {
					bytes += int64(size)
				}
				if ended[i] != 1 || delivered[i] > 1 || batch.Err() == nil && delivered[i] != 1 {
					t.Errorf("seed %d: batch %d (%v) ended %d times, immediate came %d times", seed, i, batch.Err(), ended[i], delivered[i])
				}
			}
			<-time.After(10 * time.Second) // fences are under way too
			synctest.Wait()
			var moved, inflight int64
			for _, st := range a.Rails() {
				moved += st.Write.Bytes + st.Read.Bytes
				inflight += st.InFlight
				if st.Posted != st.Write.Slices+st.Read.Slices+st.Errors || st.Posted == 0 {
					t.Errorf("seed %d: slices were lost: %+v", seed, st)
				}
			}
			if moved < bytes || inflight != 0 {
				t.Errorf("seed %d: %d bytes completed, %d moved, %d in flight", seed, bytes, moved, inflight)
			}
		})
	}
}
