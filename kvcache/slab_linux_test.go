package kvcache

import (
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"unsafe"
)

// TestSlabFollowsPool: however long blocks come and go, the slab has memory for as many
// as were held at once, and no more.
func TestSlabFollowsPool(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	mem, err := syscall.Mmap(-1, 0, 512*qwen.SlotBytes(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mem) }()
	s, err := NewSlab(qwen, mem)
	if err != nil {
		t.Fatal(err)
	}
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
			for at := s.Geometry().BlockOffset(r.ID); at < s.Geometry().BlockOffset(r.ID+1); at += 4 << 10 {
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
