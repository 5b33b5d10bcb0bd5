package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A spread is a batch over several segments of a peer, and a window of one.
type spread struct {
	segs    []*transport.Segment
	targets []*transport.Target
	want    [][]byte // what the segments hold in the end
	reqs    []transport.Request
}

// newSpread has each request go to another place than the one before.
func newSpread(t *testing.T, a, b *transport.Engine, src *transport.Segment, n int) *spread {
	t.Helper()
	x := &spread{}
	const segments = 3
	for i := range segments + 1 {
		if i < segments {
			x.segs = append(x.segs, register(t, b, fmt.Sprint("part", i), n))
			x.want = append(x.want, make([]byte, n))
		}
		info := x.segs[i%segments].Info()
		if i == segments { // the second half of the first
			w, err := x.segs[0].Window("window", transport.Write, []transport.Range{{Offset: int64(n / 2), Length: int64(n / 2)}})
			if err != nil {
				t.Fatal(err)
			}
			info = w.Info()
		}
		to, err := a.Open(info)
		if err != nil {
			t.Fatal(err)
		}
		x.targets = append(x.targets, to)
	}
	size := n / 8
	for i := range 8 {
		for k, to := range x.targets {
			if k == 0 && i >= 4 {
				continue // the window's
			}
			if k == segments && i < 4 {
				continue
			}
			local := src.Bytes()[(i*size+k*100)%(n-size):][:size]
			copy(x.want[k%segments][i*size:], local)
			x.reqs = append(x.reqs, transport.Request{Op: transport.Write, Local: local, Offset: int64(i * size), Target: to})
		}
	}
	x.reqs[0].Target = nil // Submit's
	return x
}

func (x *spread) check(t *testing.T) {
	t.Helper()
	for i, s := range x.segs {
		if !bytes.Equal(s.Bytes(), x.want[i]) {
			t.Errorf("segment %d does not have what was written", i)
		}
	}
}

// TestTargets: a batch touches several segments. Its immediate comes after all of them, with the key of
// Submit's target.
func TestTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{SliceSize: 3000})
		x := newSpread(t, p.a, p.b, p.local, segLen)
		b := p.a.Submit(x.targets[0], x.reqs, transport.BatchOptions{HasImm: true, Imm: 7})
		got := <-p.imms
		x.check(t)
		if err := wait(t, b); err != nil || got.Value != 7 || got.Segment != "part0" {
			t.Errorf("%v; immediate %+v", err, got)
		}
		mem := bytes.Clone(p.local.Bytes())
		var reads []transport.Request
		for i, k := range []int{2, 0, 1, 0} {
			at := i * 1000
			reads = append(reads, transport.Request{Op: transport.Read, Local: p.local.Bytes()[at : at+1000], Offset: int64(5 * at), Target: x.targets[k]})
			copy(mem[at:], x.want[k][5*at:5*at+1000])
		}
		if err := wait(t, p.a.Submit(x.targets[1], reads, transport.BatchOptions{})); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.local.Bytes(), mem) {
			t.Error("READ moved other bytes")
		}
	})
}

// TestTargetsFailover: what a lost path had goes over another, with the keys that the segments have there.
func TestTargetsFailover(t *testing.T) {
	for _, how := range []transport.Selection{transport.Affinity, transport.RoundRobin} {
		synctest.Test(t, func(t *testing.T) {
			x := newBundle(t, rates, segLen, transport.Config{Select: how, SliceSize: 1000})
			s := newSpread(t, x.a, x.b, x.src, segLen)
			for i := range 4 {
				x.rails[i%2].Inject(transporttest.Fault{Slice: 5 + 3*i, Kind: transporttest.Cut})
			}
			s.reqs[0].Target = s.targets[0]
			for range 10 {
				for _, seg := range s.segs {
					clear(seg.Bytes())
				}
				if err := wait(t, x.a.Submit(s.targets[1], s.reqs, transport.BatchOptions{Timeout: time.Minute})); err != nil {
					t.Fatal(err)
				}
				s.check(t)
			}
			var retries int64
			for _, r := range x.a.Rails() {
				retries += r.Retries
			}
			if retries == 0 {
				t.Error("nothing was lost")
			}
		})
	}
}

// TestTargetsFaults: each request is held to its own target.
func TestTargetsFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		small := register(t, p.b, "small", 1000)
		open := func(info transport.SegmentInfo) *transport.Target {
			to, err := p.a.Open(info)
			if err != nil {
				t.Fatal(err)
			}
			return to
		}
		closed := open(small.Info())
		closed.Close()
		c := engine(t, transport.Config{Rails: []transport.Rail{p.net.Rail("c")}, Clock: clock.Std()})
		gone := register(t, p.b, "gone", segLen)
		stale := open(gone.Info())
		gone.Close()
		first := transport.Request{Local: p.local.Bytes()[:1000]}
		for name, f := range map[string]struct {
			to     *transport.Target
			length int
			want   error
		}{
			"bounds":       {open(small.Info()), 1001, transport.ErrBounds},
			"closed":       {closed, 10, transport.ErrInvalid},
			"another peer": {open(register(t, c, "other", segLen).Info()), 10, transport.ErrInvalid},
			"bad key":      {stale, 10, transport.ErrBadKey},
			"good":         {open(small.Info()), 1000, nil},
		} {
			b := p.a.Submit(p.target, []transport.Request{first, {Local: p.local.Bytes()[:f.length], Target: f.to}}, transport.BatchOptions{})
			if err := wait(t, b); !errors.Is(err, f.want) {
				t.Errorf("%s: %v, want %v", name, err, f.want)
			}
		}
	})
}

// TestTargetsHeld: a target that is closed while a batch uses it stays until the batch has ended.
func TestTargetsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{IdleTimeout: time.Millisecond})
		other, err := p.a.Open(register(t, p.b, "other", segLen).Info())
		if err != nil {
			t.Fatal(err)
		}
		p.rail.Inject(transporttest.Fault{Slice: 1, Kind: transporttest.Delay, Delay: time.Second})
		b := p.a.Submit(p.target, []transport.Request{{Local: p.local.Bytes(), Target: other}}, transport.BatchOptions{})
		synctest.Wait()
		other.Close()
		p.target.Close()
		if err := wait(t, b); err != nil {
			t.Error(err)
		}
		if err := wait(t, p.a.Submit(p.target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("a closed target: %v", err)
		}
	})
}
