package capi_test

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"kvferry/bindings/capi"
	"kvferry/transport/transporttest"
)

// TestMemfd: memory of a memfd goes by the address that the caller says, whatever is there, and is given back
// with the segment, or with the engine.
func TestMemfd(t *testing.T) {
	there, here := open(t), open(t)
	theirs, segment := memory(t, there, "kv", 1<<14)
	target := connect(t, here, there, segment)
	f, file := transporttest.Memfd(t, 1<<14)
	said := [2]byte{1, 2}
	m := capi.Memory{
		Kind: capi.Memfd, Address: unsafe.Pointer(&said), Length: 10_000, Name: "shared",
		Descriptor: int(f.Fd()), Offset: 5000, Flags: capi.FlagPrivate,
	}
	for _, deregister := range []bool{true, false} {
		h, err := here.Register(m)
		if err != nil {
			t.Fatal(err)
		}
		copy(file[5000+9000:], "the end")
		ranges := []capi.Range{{Local: uintptr(m.Address) + 9000, Remote: 7, Length: 7}}
		if _, err := here.Submit(target, capi.OpWrite, ranges, capi.BatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if c := finish(t, here); c.Err != nil || string(theirs[7:14]) != "the end" {
			t.Errorf("%v, %q", c.Err, theirs[7:14])
		}
		clear(theirs)
		if mapped(t) != 2 { // one is the test's
			t.Errorf("%d mappings while it is registered", mapped(t))
		}
		if deregister {
			err = here.Deregister(h)
		} else {
			err = here.Close()
		}
		if err != nil || mapped(t) != 1 {
			t.Errorf("deregistered %v: %v, %d mappings are left", deregister, err, mapped(t))
		}
	}
	if said != [2]byte{1, 2} {
		t.Error("what is at the address was touched")
	}
}

// BenchmarkRegister registers 1 GiB whose pages are there, and gives it back.
func BenchmarkRegister(b *testing.B) {
	const size = 1 << 30
	e, err := capi.Open(capi.Options{Rails: "127.0.0.1:0", Log: "off"})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	f, file := transporttest.Memfd(b, size)
	for at := 0; at < size; at += 4096 {
		file[at] = 1
	}
	for name, kind := range map[string]capi.Kind{"address": capi.Host, "memfd": capi.Memfd} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h, err := e.Register(capi.Memory{Kind: kind, Address: unsafe.Pointer(&file[0]), Length: size, Descriptor: int(f.Fd())})
				if err == nil {
					err = e.Deregister(h)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// mapped is how often memfds of tests are mapped.
func mapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("no /proc")
	}
	return strings.Count(string(b), "memfd:test")
}
