package observe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/internal/clock"
)

const procStat = `cpu  100 1 50 1000 10 5 5 20 0 0
cpu0 60 1 20 400 4 2 2 15 0 0
cpu1 40 0 30 600 6 3 3 5 0 0
cpu12 1 1 1 7 1 1 1 1 0 0
intr 12345
`

// TestCPUTimes: idle and steal of the CPUs that this process may use.
func TestCPUTimes(t *testing.T) {
	for _, c := range []struct {
		allowed     []int
		idle, steal time.Duration
	}{
		{[]int{0, 1, 12}, 10180 * time.Millisecond, 210 * time.Millisecond},
		{[]int{1}, 6060 * time.Millisecond, 50 * time.Millisecond},
	} {
		var u Usage
		err := u.cpuTimes([]byte(procStat), func(cpu int) bool {
			for _, a := range c.allowed {
				if a == cpu {
					return true
				}
			}
			return false
		})
		if err != nil || u.cpus != len(c.allowed) || u.idle != c.idle || u.steal != c.steal {
			t.Errorf("%v: %+v, %v", c.allowed, u, err)
		}
	}
	var u Usage
	if err := u.cpuTimes([]byte("cpu 1 2 3"), func(int) bool { return true }); err == nil || !strings.Contains(err.Error(), "none of the CPUs") {
		t.Error(err)
	}
	if err := u.cpuTimes([]byte("cpu0 1 1 1 x 1 1 1 1 0 0"), func(int) bool { return true }); err == nil || !strings.Contains(err.Error(), "cpu0") {
		t.Error(err)
	}
}

// TestProcessUsage: CPU time of a process, and how long its threads waited for a CPU,
// where the kernel keeps that.
func TestProcessUsage(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("stat", "77 (a (b) 1 2) S 1 77 77 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 2 0 1 1 1")
	put("task/77/comm", "x")
	u := Usage{waitedKnown: true}
	if err := u.process(dir); err != nil || u.own != 4*time.Second || u.waitedKnown {
		t.Errorf("without schedstats: %+v, %v", u, err)
	}
	put("task/77/schedstat", "0 0 0\n")
	u = Usage{waitedKnown: true}
	if err := u.process(dir); err != nil || u.waitedKnown {
		t.Errorf("schedstats off: %+v, %v", u, err)
	}
	put("task/77/schedstat", "1000 2000000 3\n")
	put("task/78/schedstat", "1000 3000000 3\n")
	u = Usage{waitedKnown: true}
	if err := u.process(dir); err != nil || u.own != 4*time.Second || !u.waitedKnown || u.waited != 5*time.Millisecond {
		t.Errorf("with schedstats: %+v, %v", u, err)
	}
	put("task/78/schedstat", "1000\n")
	if err := u.process(dir); err == nil {
		t.Error("half a line was taken")
	}
	put("stat", "77 (x) S 1")
	if err := u.process(dir); err == nil {
		t.Error("half of a stat was taken")
	}
	if err := u.process(filepath.Join(dir, "gone")); err == nil {
		t.Error("a process that is gone has CPU times")
	}
}

// TestThisMachine: what readings say of it is possible.
func TestThisMachine(t *testing.T) {
	before, err := ReadUsage(nil)
	if err != nil || before.cpus < 1 {
		t.Fatalf("%+v, %v", before, err)
	}
	w, err := StartWatch(clock.Std(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := w.End()
	if err != nil || d.CPU == nil || d.CPU.CPUs != before.cpus || d.CPU.Daemons || d.CPU.OwnPct > 100 || d.CPU.OthersPct > 100 {
		t.Errorf("%+v, %v", d, err)
	}
	after, err := ReadUsage(nil)
	if err != nil || after.own < before.own || after.idle < before.idle || after.steal < before.steal {
		t.Errorf("%+v after %+v, %v", after, before, err)
	}
	if _, err := ReadUsage([]int{1 << 30}); err == nil {
		t.Error("a process that is not there has a usage")
	}
}
