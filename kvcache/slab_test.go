package kvcache

import (
	"bytes"
	"strings"
	"testing"
)

func newSlab(t *testing.T, g Geometry, blocks int) *Slab {
	t.Helper()
	size, err := SlabBytes(g, blocks)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSlab(g, make([]byte, size+g.SlotBytes()-1)) // not quite one slot more
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every byte of the slab belongs to exactly one range: writing all planes with
// different values and reading the slab through offsets sees each where it should be.
func TestSlabRanges(t *testing.T) {
	for _, g := range []Geometry{small, odd} {
		const blocks = 3
		s := newSlab(t, g, blocks)
		if len(s.Bytes()) != blocks*g.SlotBytes() || s.Blocks() != blocks || s.Geometry() != g {
			t.Fatalf("slab of %d bytes, %d blocks, %+v", len(s.Bytes()), s.Blocks(), s.Geometry())
		}
		written := 0
		mark := func(plane []byte, value byte) {
			for i := range plane {
				if plane[i] != 0 {
					t.Fatalf("byte %d of plane %d is part of plane %d too", i, value, plane[i])
				}
				plane[i] = value
			}
			written += len(plane)
			if cap(plane) != len(plane) {
				t.Fatalf("plane %d: append would write into the next", value)
			}
		}
		value := byte(1)
		for id := range BlockID(blocks) {
			for l := range g.Layers {
				mark(s.K(id, l), value)
				mark(s.V(id, l), value+1)
				at := s.Geometry().LayerOffset(id, l)
				want := append(bytes.Repeat([]byte{value}, g.planeBytes()), bytes.Repeat([]byte{value + 1}, g.planeBytes())...)
				if !bytes.Equal(s.Bytes()[at:at+int64(g.LayerBytes())], want) || !bytes.Equal(s.Layer(id, l), want) {
					t.Fatalf("block %d layer %d is not at its offset", id, l)
				}
				value += 2
			}
			mark(s.Hidden(id), value)
			if at := s.Geometry().HiddenOffset(id); s.Bytes()[at] != value || s.Bytes()[s.Geometry().BlockOffset(id)+int64(g.SlotBytes())-1] != value {
				t.Fatalf("hidden states of block %d are not at their offset", id)
			}
			value++
		}
		if written != len(s.Bytes()) {
			t.Errorf("planes cover %d of %d bytes", written, len(s.Bytes()))
		}
	}
}

func TestSlabRefuses(t *testing.T) {
	for _, tc := range []struct {
		g      Geometry
		blocks int
		want   string
	}{
		{Geometry{}, 1, "layers: 0"},
		{qwen, 0, "want 1 to"},
		{qwen, -1, "want 1 to"},
		{qwen, 1 << 32, "want 1 to"},
	} {
		if _, err := SlabBytes(tc.g, tc.blocks); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("SlabBytes(%+v, %d): got %v, want %q", tc.g, tc.blocks, err, tc.want)
		}
	}
	for want, g := range map[string]Geometry{"layers: 0": {}, "want 1 to": qwen} {
		if _, err := NewSlab(g, make([]byte, qwen.SlotBytes()-1)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("memory for less than a block: got %v, want %q", err, want)
		}
	}

	s := newSlab(t, small, 2)
	s.Touch(0, -1)
	s.Touch(-1<<20, len(s.Bytes())+1<<20) // all there is
	c := NewContent(small, "", "", testTokens(1))
	for name, f := range map[string]func(){
		"fill 3":    func() { c.Fill(s.Layer(0, 0), 0, 3) },
		"fill -1":   func() { c.Fill(s.Layer(0, 0), 0, -1) },
		"block 2":   func() { s.Layer(2, 0) },
		"layer 3":   func() { s.Layer(0, 3) },
		"layer -1":  func() { s.K(1, -1) },
		"V layer 3": func() { s.V(0, 3) },
		"hidden 2":  func() { s.Hidden(2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: got another range's memory", name)
				}
			}()
			f()
		}()
	}
}
