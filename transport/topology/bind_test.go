package topology

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestBind(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("memory is placed on Linux only")
	}
	mem, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	for _, at := range []string{Any, "cpu:0"} {
		if err := Bind(mem, at); err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
	clear(mem) // the pages are there now, and may be asked for again
	if err := Bind(mem, "cpu:0"); err != nil {
		t.Errorf("memory that is there: %v", err)
	}
	for at, want := range map[string]string{"cpu:1000": "cpu:1000", "gpu:1": "write cpu:N", "cpu:-1": "write cpu:N", "": "write cpu:N"} {
		if err := Bind(mem, at); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", at, err)
		}
	}
}
