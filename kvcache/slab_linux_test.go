package kvcache

import (
	"fmt"
	"os"
	"testing"
)

// The modelled A10's pool is mapped at once and costs only what is touched: the
// last of 15,258 slots (15.7 GB) is usable, and memory grows by pages, not slots.
func TestSlabIsLazy(t *testing.T) {
	before := residentPages(t)
	s := newSlab(t, qwen, 15_258)
	c := NewContent(qwen, testTokens(16))
	last := BlockID(s.Blocks() - 1)
	c.Fill(s.Layer(last, 27), 0, 27)
	if err := c.Check(s.Layer(last, 27), 0, 27); err != nil {
		t.Error(err)
	}
	if got := s.Bytes()[s.LayerOffset(last-1, 0)]; got != 0 {
		t.Errorf("an untouched slot reads %#x", got)
	}
	// 1 GiB leaves room for whatever other tests and huge pages bring.
	if grown := (residentPages(t) - before) * os.Getpagesize(); grown > 1<<30 {
		t.Errorf("resident memory grew by %d bytes for one layer of one block", grown)
	}
}

func residentPages(t *testing.T) int {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		t.Fatalf("/proc/self/statm holds %q: %v", statm, err)
	}
	return resident
}
