package kvcache

import (
	"fmt"
	"os"
	"syscall"
	"testing"
)

// A pool larger than the machine is mapped at once and costs only what is
// touched: the last of its slots is usable, and memory grows by pages, not slots.
// Twice the machine's memory, and at least the modelled A10's 15,258 slots
// (15.7 GB): without MAP_NORESERVE the kernel refuses it.
func TestSlabIsLazy(t *testing.T) {
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	memory := (uint64(machine.Totalram) + uint64(machine.Totalswap)) * uint64(machine.Unit)
	before := residentPages(t)
	s := newSlab(t, qwen, max(15_258, int(2*memory/uint64(qwen.SlotBytes()))))
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
