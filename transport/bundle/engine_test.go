package bundle

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// engines are two of so many rails each, in memory, with a segment each, and whoever hears of immediates.
func engines(t *testing.T, network *transporttest.Network, nics int, imm func(transport.Immediate)) (a *transport.Engine, first *transporttest.Rail, src, dst *transport.Segment, to *transport.Target) {
	t.Helper()
	var segs [2]*transport.Segment
	var all [2]*transport.Engine
	for i, host := range []string{"a", "b"} {
		var rails []transport.Rail
		for nic := range nics {
			r := network.Rail(fmt.Sprint(host, nic))
			rails = append(rails, rail{r, 4})
			if first == nil {
				first = r
			}
		}
		cfg := transport.Config{Rails: rails, Select: transport.Static, Clock: clock.Std(), Logger: slog.New(slog.DiscardHandler)}
		if host == "b" {
			cfg.OnImmediate = imm
		}
		e, err := transport.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
		if segs[i], err = e.Register(host, make([]byte, 16<<20), "*"); err != nil {
			t.Fatal(err)
		}
		all[i] = e
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range segs[0].Bytes() {
		segs[0].Bytes()[i] = byte(1 + rng.IntN(255))
	}
	to, err := all[0].Open(segs[1].Info())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return all[0], first, segs[0], segs[1], to
}

// TestLateWritesOfAll: what every connection of a lost path has on its way is ended before another path
// carries it: nothing lands when the memory is used for something else.
func TestLateWritesOfAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := transporttest.NewNetwork()
		a, first, src, dst, to := engines(t, network, 2, nil)
		for i := range 4 {
			first.Inject(transporttest.Fault{Slice: i + 1, Kind: transporttest.Late})
		}
		b := a.Submit(to, []transport.Request{{Op: transport.Write, Local: src.Bytes()}}, transport.BatchOptions{Timeout: 20 * time.Second})
		<-b.Done()
		if b.Err() != nil || !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Fatalf("%v, or other bytes arrived", b.Err())
		}
		if st := a.Rails()[0]; st.Resent < 4<<20 {
			t.Fatalf("not every connection was late: %+v", st)
		}
		clear(dst.Bytes()) // it is the target's again
		network.Arrive()
		if !bytes.Equal(dst.Bytes(), make([]byte, len(dst.Bytes()))) {
			t.Error("a late write landed in memory that was in use for something else")
		}
	})
}

// TestImmediates: an immediate comes once, when all bytes of its batch are there, over whichever connections
// and whatever is lost on the way.
func TestImmediates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, places, size, part = 60, 4, 4 << 20, 1 << 20
		var dst *transport.Segment
		var mu sync.Mutex
		heard, early := make([]int, n), 0
		imm := func(m transport.Immediate) {
			mu.Lock()
			defer mu.Unlock()
			at := int(m.Value) % places * size
			if !bytes.Equal(dst.Bytes()[at:at+size], bytes.Repeat([]byte{byte(m.Value)}, size)) {
				early++
			}
			heard[m.Value]++
		}
		a, first, src, to2, to := engines(t, transporttest.NewNetwork(), 1, imm)
		dst = to2
		for i := range 10 {
			kind := transporttest.Cut
			if i%2 == 1 {
				kind = transporttest.CutAfter
			}
			first.Inject(transporttest.Fault{Slice: 10 + 23*i, Kind: kind})
		}
		for i := 0; i < n; i += places {
			var batches []*transport.Batch
			for v := i; v < i+places; v++ {
				at := v % places * size
				copy(src.Bytes()[at:], bytes.Repeat([]byte{byte(v)}, size))
				var reqs []transport.Request
				for o := at; o < at+size; o += part {
					reqs = append(reqs, transport.Request{Op: transport.Write, Local: src.Bytes()[o : o+part], Offset: int64(o)})
				}
				batches = append(batches, a.Submit(to, reqs, transport.BatchOptions{Imm: uint64(v), HasImm: true, Timeout: 20 * time.Second}))
			}
			for _, b := range batches {
				if <-b.Done(); b.Err() != nil {
					t.Fatal(b.Err())
				}
			}
		}
		for v, times := range heard {
			if times != 1 {
				t.Errorf("immediate %d came %d times", v, times)
			}
		}
		if early > 0 {
			t.Errorf("%d immediates came before their bytes", early)
		}
		if st := a.Rails()[0]; st.Downs == 0 || st.Write.Slices == 0 {
			t.Errorf("nothing was lost: %+v", st)
		}
	})
}
