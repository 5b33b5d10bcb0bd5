package kvtransfer

import (
	"testing"

	"kvferry/kvcache"
)

// noHidden fails where hidden states are looked at.
type noHidden struct{ t *testing.T }

func (noHidden) Check([]byte, int, int) error { return nil }

func (c noHidden) CheckHidden([]byte, int) error {
	c.t.Error("hidden states are compared of a model whose cache has none")
	return nil
}

// TestNoHidden: where blocks have no hidden states there is nothing to compare.
func TestNoHidden(t *testing.T) {
	g := geometry
	g.HiddenSize = 0
	slab, err := kvcache.NewSlab(g, make([]byte, 2*g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	c := Check{Checker: noHidden{t}, Blocks: refs(0, 2), Part: Part{Layer: AllLayers, Plane: Hidden}}
	if got := c.run(slab); got != (Checked{Blocks: 2}) {
		t.Errorf("%+v", got)
	}
}
