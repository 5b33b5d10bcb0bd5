package kvcache

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"
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

// TestSlabFollowsPool: however long blocks come and go, the slab has memory for as many
// as were held at once, and no more.
func TestSlabFollowsPool(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := newSlab(t, qwen, 512)
	p := NewPool(s.Blocks(), qwen.BlockTokens, false)
	peak, handed := 0, 0
	var held [][]Ref
	for range 2000 {
		if len(held) > 12 || rng.IntN(2) == 0 && len(held) > 0 {
			i := rng.IntN(len(held))
			if err := p.Release(held[i]); err != nil {
				t.Fatal(err)
			}
			held = slices.Delete(held, i, i+1)
			continue
		}
		refs, ok := p.Alloc(1 + rng.IntN(9))
		if !ok {
			t.Fatal("512 blocks are not enough for 13 times 9")
		}
		for _, r := range refs {
			for at := s.BlockOffset(r.ID); at < s.BlockOffset(r.ID+1); at += 4 << 10 {
				s.Bytes()[at] = 1
			}
		}
		held, handed = append(held, refs), handed+len(refs)
		peak = max(peak, p.Used())
	}
	// Page by page; a huge page more at the end.
	pages := make([]byte, (len(s.Bytes())+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, err := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&s.Bytes()[0])), uintptr(len(s.Bytes())), uintptr(unsafe.Pointer(&pages[0]))); err != 0 {
		t.Fatal(err)
	}
	resident := 0
	for _, in := range pages {
		resident += int(in&1) * os.Getpagesize()
	}
	t.Logf("%d blocks were handed out, %d at once; %d slots are in memory", handed, peak, resident/qwen.SlotBytes())
	if most := peak*qwen.SlotBytes() + 2<<20; resident > most || resident == 0 {
		t.Errorf("%d bytes of the slab are in memory, want at most %d for %d blocks", resident, most, peak)
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
