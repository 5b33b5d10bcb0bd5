package proc

import (
	"os"
	"strings"
	"testing"
)

// TestUsage: memory that a process touches is its own, and its program's is there too.
func TestUsage(t *testing.T) {
	before, err := usage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size, slack = 64 << 20, 4 << 20 // the kernel's counters are not exact
	touched := make([]byte, size)
	for i := 0; i < len(touched); i += 4096 {
		touched[i] = 1
	}
	after, err := usage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if touched[0] != 1 || after.Own < size {
		t.Errorf("after %d bytes were touched, %d are its own", size, after.Own)
	}
	if before.Program < 1<<20 || after.Program < 1<<20 || after.Own+after.Program+slack < before.Own+before.Program {
		t.Errorf("before %+v, after %+v: a Go program has 1 MB and more in use, and the peak does not fall", before, after)
	}
	if _, err := usage(1 << 30); err == nil {
		t.Error("a process that is not there has a usage")
	}
}

func TestNumber(t *testing.T) {
	const status = "Name:\tproxy\nVmHWM:\t   66100 kB\nRssFile:\t   x kB\n"
	if n, err := number([]byte(status), "VmHWM:"); n != 66100 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, field := range []string{"RssFile:", "RssShmem:"} {
		if _, err := number([]byte(status), field); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v does not name it", field, err)
		}
	}
}
