package transport_test

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// window opens ranges of the pair's remote segment, and a target of them.
func (p *pair) window(op transport.Op, ranges ...transport.Range) (*transport.Window, *transport.Target) {
	p.t.Helper()
	w, err := p.remote.Window("transfer", op, ranges)
	if err != nil {
		p.t.Fatal(err)
	}
	tgt, err := p.a.Open(w.Info())
	if err != nil {
		p.t.Fatal(err)
	}
	return w, tgt
}

// one is a batch of one request at the same offset at both ends.
func (p *pair) one(tgt *transport.Target, op transport.Op, at, n int, opt transport.BatchOptions) error {
	p.t.Helper()
	return wait(p.t, p.a.Submit(tgt, []transport.Request{{Op: op, Local: p.local.Bytes()[at : at+n], Offset: int64(at)}}, opt))
}

// A batch through a window does what the window opens. Anything else fails it at
// once, for good, and says why; the connection and other batches go on.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{SliceSize: 512})
		w, tgt := p.window(transport.Write, transport.Range{Offset: 8192, Length: 4096}, transport.Range{Offset: 4096, Length: 4096})
		if info := w.Info(); info.Name != "transfer" || info.Length != segLen || info.Rails[0].Key == p.remote.Info().Rails[0].Key {
			t.Errorf("window %+v of %+v", info, p.remote.Info())
		}
		if err := p.one(tgt, transport.Write, 4096, 8192, transport.BatchOptions{Imm: 5, HasImm: true}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.remote.Bytes()[4096:12288], p.local.Bytes()[4096:12288]) {
			t.Error("other bytes arrived")
		}
		if got := <-p.imms; got.Value != 5 || got.Segment != "transfer" {
			t.Errorf("immediate %+v does not name the window", got)
		}
		before := bytes.Clone(p.remote.Bytes())
		for _, c := range []struct {
			op    transport.Op
			at, n int
			want  error
		}{
			{transport.Write, 4095, 1, transport.ErrBounds},
			{transport.Write, 12288, 1, transport.ErrBounds},
			{transport.Write, 8192, 4097, transport.ErrBounds},
			{transport.Read, 4096, 1, transport.ErrAccess},
		} {
			err := p.one(tgt, c.op, c.at, c.n, transport.BatchOptions{Imm: 6, HasImm: true, Tag: "cmpl-9"})
			var e *transport.Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) || e.Tag != "cmpl-9" || e.Peer != "b" {
				t.Errorf("%v of %d bytes at %d: %v, want %v", c.op, c.n, c.at, err, c.want)
			}
		}
		// The last slice, with which the immediate goes, lies within the window. Another does not.
		mem := p.local.Bytes()
		b := p.a.Submit(tgt, []transport.Request{{Local: mem[:10], Offset: 5000}, {Local: mem[:10], Offset: 100}, {Local: mem[:10], Offset: 6000}}, transport.BatchOptions{Imm: 7, HasImm: true})
		if err := wait(t, b); !errors.Is(err, transport.ErrBounds) {
			t.Errorf("a batch with one request outside: %v", err)
		}
		if !bytes.Equal(before[:4096], p.remote.Bytes()[:4096]) || len(p.imms) != 0 {
			t.Errorf("bytes outside were written, or %d immediates delivered", len(p.imms))
		}
		copy(p.remote.Bytes(), before)
		if !bytes.Equal(before[:8192], p.remote.Bytes()[:8192]) || !bytes.Equal(before[12288:], p.remote.Bytes()[12288:]) || len(p.imms) != 0 {
			t.Errorf("bytes outside were written, or %d immediates delivered", len(p.imms))
		}
		if st := p.a.Rails()[0]; st.Dials != 1 || st.Retries != 0 {
			t.Errorf("refusals cost the connection, or were tried again: %+v", st)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.one(tgt, transport.Write, 4096, 1, transport.BatchOptions{}); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("through a closed window: %v", err)
		}
		if err := p.one(p.target, transport.Write, 0, segLen, transport.BatchOptions{}); err != nil {
			t.Errorf("with the segment's own key: %v", err)
		}
	})
}

// A segment that is local only gives no key away, is good as the local side, and is
// reached through its windows.
func TestRegisterLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		mem := bytes.Repeat([]byte{3}, segLen)
		seg, err := p.a.RegisterLocal("slab", mem, "cpu:0")
		if err != nil {
			t.Fatal(err)
		}
		if info := seg.Info(); len(info.Rails) != 0 || info.Name != "slab" {
			t.Errorf("it tells peers %+v", info)
		}
		if _, err := p.b.Open(seg.Info()); !errors.Is(err, transport.ErrNoPath) || !strings.HasSuffix(err.Error(), "rails here are of kind mem, those there that may be used for its memory of kind none") {
			t.Errorf("open: %v", err)
		}
		b := p.a.Submit(p.target, []transport.Request{{Local: mem[:100]}}, transport.BatchOptions{})
		if err := wait(t, b); err != nil || p.remote.Bytes()[99] != 3 {
			t.Errorf("a write from it: %v", err)
		}
		w, err := seg.Window("w", transport.Read, []transport.Range{{Offset: 10, Length: 10}})
		if err != nil {
			t.Fatal(err)
		}
		back, err := p.b.Open(w.Info())
		if err != nil {
			t.Fatal(err)
		}
		for at, want := range map[int64]error{10: nil, 9: transport.ErrBounds} {
			b := p.b.Submit(back, []transport.Request{{Op: transport.Read, Local: p.remote.Bytes()[:10], Offset: at}}, transport.BatchOptions{})
			if err := wait(t, b); !errors.Is(err, want) || err != nil && want == nil {
				t.Errorf("a read of its window at %d: %v, want %v", at, err, want)
			}
		}
	})
}

// What cannot be opened is refused where it is asked for, and leaves no key behind.
func TestWindowFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		for name, ranges := range map[string][]transport.Range{
			"none": nil, "empty": {{Offset: 5}}, "beyond the end": {{Offset: segLen - 1, Length: 2}}, "negative": {{Offset: -1, Length: 2}},
		} {
			if _, err := p.remote.Window("w", transport.Read, ranges); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		w, tgt := p.window(transport.Read, transport.Range{Offset: 0, Length: segLen})
		if err := p.remote.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.one(tgt, transport.Read, 0, 1, transport.BatchOptions{}); !errors.Is(err, transport.ErrBadKey) {
			t.Errorf("through a window of a closed segment: %v", err)
		}
		if _, err := p.remote.Window("w", transport.Read, []transport.Range{{Length: 1}}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a window of a closed segment: %v", err)
		}
		if err := w.Close(); err != nil {
			t.Errorf("closed after its segment: %v", err)
		}
	})
}

// A second Close of a window, beside the first, returns when nothing touches the
// memory any more, and not before.
func TestWindowCloseTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := transporttest.NewNetwork()
		slow := &slowDeregister{Rail: n.Rail("b")}
		b := engine(t, transport.Config{Rails: []transport.Rail{slow}, Clock: clock.Std()})
		seg := register(t, b, "seg", segLen)
		w, err := seg.Window("w", transport.Read, []transport.Range{{Length: 1}})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		go w.Close()
		synctest.Wait()
		if err := w.Close(); err != nil || time.Since(start) != time.Second {
			t.Errorf("the second Close returned after %v: %v", time.Since(start), err)
		}
	})
}

// slowDeregister is a rail whose peers take a second to let go of a region.
type slowDeregister struct{ transport.Rail }

func (r *slowDeregister) Deregister(k transport.Key) error {
	<-time.After(time.Second)
	return r.Rail.Deregister(k)
}
