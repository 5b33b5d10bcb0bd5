package transport_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// Memory larger than the machine is mapped at once and costs only what is touched: its
// last byte is usable, and memory grows by pages. Twice the machine's memory, and at least
// the 15.7 GB of a modelled A10's KV pool: without MAP_NORESERVE the kernel refuses it.
func TestMapMemoryIsLazy(t *testing.T) {
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	size := max(int(2*(machine.Totalram+machine.Totalswap)*uint64(machine.Unit)), 15_700_000_000)
	before := residentPages(t)
	mem, release, err := transport.MapMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	mem[size-1] = 7
	if mem[0] != 0 || mem[size/2] != 0 {
		t.Error("memory that nobody has touched is not zero")
	}
	// 1 GiB leaves room for whatever other tests and huge pages bring.
	if grown := (residentPages(t) - before) * os.Getpagesize(); grown > 1<<30 {
		t.Errorf("resident memory grew by %d bytes for three that were touched", grown)
	}
	for range 2 {
		if err := release(); err != nil {
			t.Error(err)
		}
	}
	for _, size := range []int{0, -1, 1 << 60} {
		if mem, release, err := transport.MapMemory(size); err == nil || mem != nil || release != nil {
			t.Errorf("%d bytes: %d, %v", size, len(mem), err)
		}
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

// shared is an Allocator of memory that another process can map.
func shared(size int) ([]byte, func() error, error) {
	fd, err := unix.MemfdCreate("segment", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd) // the mapping keeps the memory
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, nil, err
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return mem, func() error { return unix.Munmap(mem) }, nil
}

// TestAllocators: segments over an allocator's memory carry transfers, and when they are
// closed the memory may go.
func TestAllocators(t *testing.T) {
	for name, allocate := range map[string]transport.Allocator{"mapped": transport.MapMemory, "memfd": shared} {
		t.Run(name, func(t *testing.T) {
			n := transporttest.NewNetwork()
			var mems [2][]byte
			var engines [2]*transport.Engine
			var segs [2]*transport.Segment
			for i, at := range []string{"a", "b"} {
				e, err := transport.New(transport.Config{Rails: []transport.Rail{n.Rail(at)}})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				mem, release, err := allocate(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := release(); err != nil {
						t.Error(err)
					}
				}()
				engines[i], mems[i] = e, mem
				if segs[i], err = e.Register(at, mem, "cpu:0"); err != nil {
					t.Fatal(err)
				}
				defer segs[i].Close()
			}
			target, err := engines[0].Open(segs[1].Info())
			if err != nil {
				t.Fatal(err)
			}
			copy(mems[0], "carried")
			b := engines[0].Submit(target, []transport.Request{{Op: transport.Write, Local: mems[0], Offset: 0}}, transport.BatchOptions{})
			if <-b.Done(); b.Err() != nil || string(mems[1][:7]) != "carried" {
				t.Errorf("%v, %q landed", b.Err(), mems[1][:7])
			}
		})
	}
}
