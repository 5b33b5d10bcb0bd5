package kvcache

import (
	"bytes"
	"strings"
	"testing"
)

func newSlab(t *testing.T, g Geometry, blocks int) *Slab {
	t.Helper()
	s, err := NewSlab(g, blocks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
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
				at := s.LayerOffset(id, l)
				want := append(bytes.Repeat([]byte{value}, g.planeBytes()), bytes.Repeat([]byte{value + 1}, g.planeBytes())...)
				if !bytes.Equal(s.Bytes()[at:at+int64(g.LayerBytes())], want) || !bytes.Equal(s.Layer(id, l), want) {
					t.Fatalf("block %d layer %d is not at its offset", id, l)
				}
				value += 2
			}
			mark(s.Hidden(id), value)
			if at := s.HiddenOffset(id); s.Bytes()[at] != value || s.Bytes()[s.BlockOffset(id)+int64(g.SlotBytes())-1] != value {
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
		// 2^32-1 slots of 1 GiB: beyond the 2^47 bytes a process can map.
		{Geometry{1, 1, 1 << 28, 1, 2, 0}, 1<<32 - 1, "map slab of"},
	} {
		s, err := NewSlab(tc.g, tc.blocks)
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("NewSlab(%+v, %d): got %v, want %q", tc.g, tc.blocks, err, tc.want)
		}
	}

	s := newSlab(t, small, 2)
	s.Touch(0, -1)
	s.Touch(-1<<20, len(s.Bytes())+1<<20) // all there is
	c := NewContent(small, testTokens(1))
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

func TestSlabClose(t *testing.T) {
	s, err := NewSlab(small, 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if s.Bytes() != nil {
			t.Error("Bytes after Close")
		}
	}
}
