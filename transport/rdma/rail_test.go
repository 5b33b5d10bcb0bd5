package rdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

var discard = slog.New(slog.DiscardHandler)

// exporting is a rail whose device takes memfds for dma-bufs.
type exporting struct{ *Rail }

// TakesMemfds implements transporttest.Exporting.
func (exporting) TakesMemfds() {}

func TestContract(t *testing.T) {
	for _, c := range []struct {
		name         string
		pairs, depth int
	}{{"default", 0, 0}, {"three queue pairs", 3, 0}, {"shallow queues", 1, 5}, {"three shallow", 3, 5}} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric()
			transporttest.TestRail(t, func(tb testing.TB) transport.Rail {
				return exporting{f.rail(tb, func(cfg *Config) { cfg.QueuePairs, cfg.QueueDepth = c.pairs, c.depth })}
			}, transporttest.Unchecked)
		})
	}
}

// TestWindowIsOpen: what the package comment says that windows do not keep peers from.
// If it fails, windows have become better than their description.
func TestWindowIsOpen(t *testing.T) {
	f := newFabric()
	a, b := f.rail(t), f.rail(t)
	defer a.Close()
	defer b.Close()
	access, err := transport.NewAccess(transport.Read, []transport.Range{{Offset: 100, Length: 10}})
	if err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 1000)
	key, err := b.Register(mem, access)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	s := transport.NewSlice(transport.Write, bytes.Repeat([]byte{7}, 1000), key, 0, func(_ *transport.Slice, err error) { done <- err })
	if n, err := ep.Post([]*transport.Slice{s}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := <-done; err != nil || mem[0] != 7 || mem[999] != 7 {
		t.Errorf("a write outside the window: %v", err)
	}
}

// TestStrangeImmediate: an immediate that comes with a key which the peer was never
// told, nobody's or one that opens nothing, ends the connection and is not delivered.
func TestStrangeImmediate(t *testing.T) {
	f := newFabric()
	log := &clocktest.Log{}
	a, b := f.rail(t), f.rail(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	defer a.Close()
	b.HandleImmediates(func(transport.Key, transport.Imm) error {
		t.Error("delivered")
		return nil
	})
	mem := make([]byte, 64)
	local, err := b.Register(mem, transport.Access{})
	if err != nil {
		t.Fatal(err)
	}
	key, err := b.Register(mem, transport.Whole(64))
	if err != nil {
		t.Fatal(err)
	}
	dev := f.devices[a.cfg.Device]
	for _, claim := range []transport.Key{key ^ 1, local} {
		f.with(func() {
			f.fault = func(w *workRequest) status {
				if w.op == opWrite && w.length == letterLen {
					binary.LittleEndian.PutUint64(dev.find(w.lkey, w.local, w.length), uint64(claim))
				}
				return statusOK
			}
		})
		ep, err := a.Dial(t.Context(), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		s := transport.NewSlice(transport.Write, nil, key, 0, func(_ *transport.Slice, err error) { done <- err })
		s.HasImm, s.Imm = true, transport.Imm{Source: 1}
		if n, err := ep.Post([]*transport.Slice{s}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if err := <-done; !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("claiming key %#x: %v", claim, err)
		}
	}
	if err := b.Close(); err != nil { // its log is complete
		t.Error(err)
	}
	if n := strings.Count(log.String(), "was not told of"); n != 1 { // for both: they have a line together
		t.Errorf("%d lines in the log: %s", n, log.String())
	}
}
