package kvtransfer

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"kvferry/kvcache"
	"kvferry/transport"
)

// TestMoveFaults: a move, or a check, of what there is not ends once and at once, with an
// error that names it, and nothing is posted.
func TestMoveFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, nil)
		defer c.close()
		d := c.b.grant(1, Terms{Op: transport.Write, Blocks: refs(0, 2), Tokens: 8}).Descriptor()
		x := c.a.open(d, Options{Tag: "request 7"})
		for want, m := range map[string]struct {
			part  Part
			local []kvcache.Ref
		}{
			"layer 99 of 3":   {Part{Layer: 99}, refs(0, 2)},
			"layer 3 of 3":    {Part{Layer: geometry.Layers}, refs(0, 2)}, // the next block's first
			"layer -7 of 3":   {Part{Layer: -7}, refs(0, 2)},
			"unknown plane 9": {Part{Plane: 9}, refs(0, 2)},
			"block 32 of 32":  {Whole, refs(blocks-1, 2)},
		} {
			c.a.start(x, transport.Write, m.part, m.local, true, 0)
			c.a.mu.Lock()
			if n := len(c.a.moved); n != 1 || !strings.Contains(c.a.moved[0].Err.Error(), `"request 7"`) || !strings.Contains(c.a.moved[0].Err.Error(), want) {
				t.Errorf("%v, want %q", c.a.moved, want)
			}
			c.a.mu.Unlock()
			c.a.ended(transport.ErrInvalid)
			checks := 0
			c.a.Check(Check{Checker: kvcache.NewContent(geometry, prompt(8)), Blocks: m.local, Part: m.part}, func(e Checked) {
				if checks++; !errors.Is(e.Err, transport.ErrInvalid) || !strings.Contains(e.Err.Error(), want) || e.Blocks != 0 {
					t.Errorf("a check: %+v, want %q", e, want)
				}
			})
			if checks != 1 {
				t.Errorf("%s: %d checks have ended", want, checks)
			}
		}
		synctest.Wait()
		if n := c.a.rail.Carried(); n != 0 || x.Moves() != 0 {
			t.Errorf("%d slices were carried, %d moves have not ended", n, x.Moves())
		}
		x.Close(false)
		c.a.empty()
	})
}
