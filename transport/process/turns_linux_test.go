package process

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestShortTurns: all threads have short turns, also those made later, and the priority that they had.
func TestShortTurns(t *testing.T) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if before.Runtime == 0 {
		t.Skip("this kernel knows no turns of a thread's own: it is older than Linux 6.12")
	}
	ShortTurns()
	var wg, started sync.WaitGroup
	all := make(chan struct{})
	for range 16 { // new threads
		started.Add(1)
		wg.Go(func() {
			runtime.LockOSThread()
			started.Done()
			<-all
		})
	}
	started.Wait()
	defer wg.Wait()
	defer close(all)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		attr, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			t.Fatal(err)
		}
		if attr.Runtime != uint64(turn) || attr.Nice != before.Nice || attr.Policy != before.Policy {
			t.Errorf("thread %d has turns of %v, policy %d, nice %d; want %v, %d, %d",
				tid, time.Duration(attr.Runtime), attr.Policy, attr.Nice, turn, before.Policy, before.Nice)
		}
	}
}
