package transporttest

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"kvferry/transport"
)

// testExpress has what is small go past bulk that the target does not let go on: over a connection of its
// own, whose immediates are handled meanwhile.
func testExpress(t *testing.T, factory Factory) {
	const bulk, small = 1 << 20, 4 << 10
	held, release := newChan[struct{}](), newChan[struct{}]()
	open := func(heard func(transport.Immediate)) (*transport.Engine, transport.Rail) {
		r := factory(t)
		e, err := transport.New(transport.Config{Rails: []transport.Rail{r}, OnImmediate: heard, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return e, r
	}
	a, _ := open(nil)
	defer a.Close()
	b, there := open(func(i transport.Immediate) {
		if i.Value == bulk {
			held <- struct{}{}
			<-release
		}
	})
	defer b.Close()
	src, dst := bytesOf(bulk+small), memoryOf(t, there, bulk+small)
	fill(src, 1)
	if _, err := a.RegisterLocal("src", src, "cpu:0"); err != nil {
		t.Fatal(err)
	}
	remote, err := b.Register("dst", dst, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	target, err := a.Open(remote.Info())
	if err != nil {
		t.Fatal(err)
	}
	submit := func(at, n int) *transport.Batch {
		return a.Submit(target, []transport.Request{{Local: src[at : at+n], Offset: int64(at)}}, transport.BatchOptions{HasImm: true, Imm: uint64(n), Timeout: 2 * patience})
	}
	all := []*transport.Batch{submit(0, bulk)}
	<-held
	// The first that is to go past has its connection made, and is in line with the bulk.
	for past, end := false, time.Now().Add(patience); !past && time.Now().Before(end); {
		s := submit(bulk, small)
		all = append(all, s)
		select {
		case <-s.Done():
			past = true
		case <-time.After(20 * time.Millisecond):
		}
	}
	if last := all[len(all)-1]; all[0].Status() != transport.InFlight || last.Status() != transport.Completed {
		t.Errorf("bulk is %v, and the last of %d that are small %v", all[0].Status(), len(all)-1, last.Status())
	}
	release <- struct{}{}
	for i, s := range all {
		<-s.Done()
		if err := s.Err(); err != nil {
			t.Errorf("batch %d: %v", i, err)
		}
	}
	if !bytes.Equal(src, dst) {
		t.Error("other bytes landed")
	}
}
