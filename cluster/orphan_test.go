package cluster

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/node"
)

const orphanEnv = "KVFERRY_TEST_ORPHAN"

// orphan is a process that starts a cluster, prints its processes' ids and then
// waits to be killed.
func orphan() int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	os.Unsetenv(orphanEnv) // its children are none
	c, err := Start(ctx, Spec{Prefill: 1, Decode: 1, Profile: "zero", Node: node.Config{KVBlocks: 64}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, p := range c.Processes() {
		fmt.Print(p.Pid(), " ")
	}
	fmt.Println()
	<-ctx.Done()
	return 1
}

// TestParentKilled kills the parent with -9, which leaves it no time to stop its
// children: they must end by themselves.
func TestParentKilled(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), orphanEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the parent's processes: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	pids := strings.Fields(line)
	if len(pids) != 3 {
		t.Fatalf("want 3 processes, got %q", line)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for _, s := range pids {
		pid, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		for alive(pid) {
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("process %d outlives its parent", pid)
			}
		}
	}
}

// alive reports whether a process runs: one that has ended but that nobody has
// waited for, as init of a container may not, is none.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	return !strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " Z")
}
