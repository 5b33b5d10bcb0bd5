package transport_test

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestAfterClose: what an engine's parts do when it is closed. Nothing starts, what tells
// of things goes on, and what ends things has nothing left to do.
func TestAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		window, err := p.local.Window("w", transport.Read, []transport.Range{{Length: 10}})
		if err != nil {
			t.Fatal(err)
		}
		done := p.a.Submit(p.target, p.reqs(transport.Read, 2), transport.BatchOptions{})
		if err := wait(t, done); err != nil {
			t.Fatal(err)
		}
		before := [3]transport.SegmentInfo{p.local.Info(), window.Info(), p.remote.Info()}
		if err := p.a.Close(); err != nil {
			t.Fatal(err)
		}
		_, register := p.a.Register("late", make([]byte, 1), "cpu:0")
		_, local := p.a.RegisterLocal("late", make([]byte, 1), "cpu:0")
		_, open := p.a.Open(p.remote.Info())
		_, another := p.local.Window("late", transport.Read, []transport.Range{{Length: 10}})
		late := p.a.Submit(p.target, p.reqs(transport.Read, 2), transport.BatchOptions{})
		for what, err := range map[string]error{"Register": register, "RegisterLocal": local, "Open": open, "Window": another, "Submit": wait(t, late)} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if late.Status() != transport.Failed {
			t.Errorf("a batch that came late has %v", late.Status())
		}
		if st := p.a.Rails(); len(st) != 1 || st[0].Read.Bytes != segLen {
			t.Errorf("what the rails have done: %+v", st)
		}
		if now := [3]transport.SegmentInfo{p.local.Info(), window.Info(), p.remote.Info()}; now[0].Rails[0] != before[0].Rails[0] || now[1].Rails[0] != before[1].Rails[0] || len(p.local.Bytes()) != segLen {
			t.Errorf("what there is to know of segments: %+v, before %+v", now, before)
		}
		done.Cancel()
		trail := done.Trail()
		trail.Add(late.Trail())
		trail.Vouch()
		trail.Blame(errors.New("too late"))
		if done.Status() != transport.Completed || done.Err() != nil || done.Bytes() != segLen {
			t.Errorf("a batch that had completed has %v, %v", done.Status(), done.Err())
		}
		for range 2 {
			if err := errors.Join(p.target.Close(), window.Close(), p.local.Close(), p.a.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestAfterSegmentClose: a closed segment's keys are bad ones, it opens no more windows,
// and a target that is closed takes no batches.
func TestAfterSegmentClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, transport.Config{})
		window, err := p.remote.Window("w", transport.Read, []transport.Range{{Length: segLen}})
		if err != nil {
			t.Fatal(err)
		}
		through, err := p.a.Open(window.Info())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.remote.Close(); err != nil {
			t.Fatal(err)
		}
		for name, target := range map[string]*transport.Target{"segment": p.target, "window": through} {
			if err := wait(t, p.a.Submit(target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrBadKey) {
				t.Errorf("through the closed %s: %v", name, err)
			}
			if err := target.Close(); err != nil {
				t.Error(err)
			}
			if err := wait(t, p.a.Submit(target, p.reqs(transport.Read, 1), transport.BatchOptions{})); !errors.Is(err, transport.ErrInvalid) {
				t.Errorf("to the closed target of the %s: %v", name, err)
			}
		}
		if _, err := p.remote.Window("late", transport.Read, []transport.Range{{Length: 1}}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a window of a closed segment: %v", err)
		}
		if err := window.Close(); err != nil {
			t.Errorf("a window after its segment: %v", err)
		}
	})
}

// A tardy rail lets the engine be closed while it registers memory.
type tardy struct {
	*transporttest.Rail
	close func() error
	keys  int
}

func (r *tardy) Register(mem []byte, access transport.Access) (transport.Key, error) {
	key, err := r.Rail.Register(mem, access)
	r.keys++
	return key, errors.Join(err, r.close())
}

func (r *tardy) Deregister(key transport.Key) error {
	r.keys--
	return r.Rail.Deregister(key)
}

// TestCloseWithinRegister: memory that an engine did not take, as it was closed meanwhile, has no key
// left on any rail: its owner may free it.
func TestCloseWithinRegister(t *testing.T) {
	rail := &tardy{Rail: transporttest.NewNetwork().Rail("a")}
	e := engine(t, transport.Config{Rails: []transport.Rail{rail}})
	rail.close = e.Close
	if _, err := e.Register("late", make([]byte, 1), "cpu:0"); !errors.Is(err, net.ErrClosed) || rail.keys != 0 {
		t.Errorf("%v, and %d keys are left", err, rail.keys)
	}
}
