package transporttest

import (
	"bytes"
	"context"
	"sync/atomic"

	"kvferry/transport"
)

// A Corrupter is a rail that flips a bit in the bytes of every so many slices it
// carries as their initiator, and says that all went well.
type Corrupter struct {
	transport.Rail
	every   atomic.Int64
	carried atomic.Int64
	flipped atomic.Int64
}

// Corrupt makes a rail spoil every n-th slice with bytes; of 0 none.
func Corrupt(r transport.Rail, every int) *Corrupter {
	c := &Corrupter{Rail: r}
	c.Every(every)
	return c
}

// Every changes how many it spoils.
func (c *Corrupter) Every(n int) { c.every.Store(int64(n)) }

// Carried is how many slices with bytes it has carried, and of them spoilt.
func (c *Corrupter) Carried() (carried, flipped int64) { return c.carried.Load(), c.flipped.Load() }

// WatchesWrites implements transport.WriteWatcher, as the rail does.
func (c *Corrupter) WatchesWrites() bool {
	w, ok := c.Rail.(transport.WriteWatcher)
	return ok && w.WatchesWrites()
}

// Dial implements transport.Rail.
func (c *Corrupter) Dial(ctx context.Context, addr string) (transport.Endpoint, error) {
	ep, err := c.Rail.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &corrupting{ep, c}, nil
}

type corrupting struct {
	transport.Endpoint
	c *Corrupter
}

// Post implements transport.Endpoint. A slice to be spoilt goes as another one that
// ends it: of a WRITE with other bytes, of a READ with the flip when it has come.
func (e *corrupting) Post(slices []*transport.Slice) (int, error) {
	ours := make([]*transport.Slice, len(slices))
	for i, s := range slices {
		ours[i] = s
		if every := e.c.every.Load(); len(s.Local) > 0 && every > 0 && e.c.carried.Load()%every == every-1 {
			ours[i] = e.spoil(s)
		}
		if len(s.Local) > 0 {
			e.c.carried.Add(1)
		}
	}
	n, err := e.Endpoint.Post(ours)
	for i, s := range slices[n:] {
		if len(s.Local) > 0 {
			e.c.carried.Add(-1)
		}
		if ours[n+i] != s {
			e.c.flipped.Add(-1)
		}
	}
	return n, err
}

func (e *corrupting) spoil(s *transport.Slice) *transport.Slice {
	e.c.flipped.Add(1)
	local := s.Local
	if s.Op == transport.Write {
		local = bytes.Clone(local)
		local[len(local)/2] ^= 0x10
	}
	o := transport.NewSlice(s.Op, local, s.Key, s.Offset, func(_ *transport.Slice, err error) {
		if err == nil && s.Op == transport.Read {
			s.Local[len(s.Local)/2] ^= 0x10
		}
		s.Complete(err)
	})
	o.LocalKey, o.HasImm, o.Imm, o.Behind = s.LocalKey, s.HasImm, s.Imm, s.Behind
	return o
}
