package transport_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport"
)

// TestRefusedMakesRoom: what waits for room behind slices of which every one is refused is posted when
// they are.
func TestRefusedMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newBundle(t, []float64{4 * gbit}, 80<<20, transport.Config{})
		gone, err := x.dst.Window("gone", transport.Write, []transport.Range{{Offset: 0, Length: 80 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		to, err := x.a.Open(gone.Info())
		if err != nil {
			t.Fatal(err)
		}
		gone.Close()
		batch := func(to *transport.Target) *transport.Batch {
			return x.a.Submit(to, []transport.Request{{Op: transport.Write, Local: x.src.Bytes()}}, transport.BatchOptions{Timeout: time.Minute})
		}
		refused, good := batch(to), batch(x.target)
		if <-refused.Done(); !errors.Is(refused.Err(), transport.ErrBadKey) {
			t.Errorf("the window is closed: %v", refused.Err())
		}
		if <-good.Done(); good.Err() != nil {
			t.Error(good.Err())
		}
	})
}
