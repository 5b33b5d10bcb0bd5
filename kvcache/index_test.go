package kvcache

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestIndex: what a map of the same does, of Hashes that differ in any of their bytes, as tables
// grow and are nearly full.
func TestIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for trial := range 50 {
		var hashes []Hash
		for range 300 {
			var h Hash
			binary.LittleEndian.PutUint32(h[rng.IntN(13):], uint32(rng.IntN(200)))
			hashes = append(hashes, h)
		}
		x, want := NewIndex(func(place uint32) Hash { return hashes[place] }), map[Hash]uint32{}
		for range 5000 {
			i := uint32(rng.IntN(len(hashes)))
			h := hashes[i]
			switch rng.IntN(3) {
			case 0:
				_, there := want[h]
				if x.Add(h, i) == there {
					t.Fatalf("trial %d: added though there: %v", trial, there)
				}
				if !there {
					want[h] = i
				}
			case 1:
				x.Remove(i) // of a Hash with another place nothing
				if want[h] == i {
					delete(want, h)
				}
			default:
				place, ok := x.Find(h)
				if at, there := want[h]; ok != there || ok && place != at {
					t.Fatalf("trial %d: %v is at %d, %v; want %d, %v", trial, h, place, ok, at, there)
				}
			}
			if x.Len() != len(want) {
				t.Fatalf("trial %d: %d, want %d", trial, x.Len(), len(want))
			}
		}
		for h, at := range want {
			if place, ok := x.Find(h); !ok || place != at {
				t.Fatalf("trial %d: %v is at %d, %v; want %d", trial, h, place, ok, at)
			}
		}
		x.Clear()
		if _, ok := x.Find(hashes[0]); ok || x.Len() != 0 {
			t.Fatal("there though cleared")
		}
	}
}
