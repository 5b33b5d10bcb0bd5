package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"
)

// These run the RDMA rail on real queue pairs: the tests of package
// transport/rdma, and the whole cluster.

// build compiles packages for the hosts, with verbs in them.
func build(t *testing.T, dir string, test bool, packages ...string) []File {
	t.Helper()
	var files []File
	for _, pkg := range packages {
		args := []string{"build"}
		name := filepath.Base(pkg)
		if test {
			args, name = []string{"test", "-c"}, name+".test"
		}
		out := filepath.Join(dir, name)
		cmd := exec.Command("go", append(args, "-tags", "rdma", "-ldflags", "-s -w", "-o", out, "./"+pkg)...)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		files = append(files, File{From: out})
	}
	return files
}

// run boots a lab that must succeed, and returns what it printed.
func run(t *testing.T, cfg Config) string {
	t.Helper()
	var out lines
	cfg.Stdout, cfg.Stderr, cfg.Log = &out, &out, &out
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if r.ExitCode() != 0 {
		t.Fatalf("exit status %d\n%s", r.ExitCode(), out.String())
	}
	t.Log(out.String())
	return out.String()
}

// TestRoCERail: the contract of transporttest on one host, and the faults between
// two, of which the lab does two: it pulls a cable and it cuts the power.
func TestRoCERail(t *testing.T) {
	needLab(t)
	bin := build(t, t.TempDir(), true, "transport/rdma")[0].From
	t.Run("Contract", func(t *testing.T) {
		out := lines{}
		out.WriteString(run(t, Config{
			Hosts: 1, NICs: 1, CPUs: runtime.NumCPU(), Timeout: 3 * time.Minute, Env: []string{"KVFERRY_RDMA=rxe0"},
			Command: []string{bin, "-test.run", "TestVerbsContract", "-test.v", "-test.timeout", "150s"},
		}))
		out.has(t, "--- PASS: TestVerbsContract/default/DeregisterUnderLoad", "--- PASS: TestVerbsContract/three_shallow_queue_pairs/PeerClose")
	})
	t.Run("Faults", func(t *testing.T) {
		out := lines{}
		out.WriteString(run(t, Config{
			Until: 1, Timeout: 3 * time.Minute,
			Command: []string{bin, "-test.run", "TestLabFaults", "-test.v", "-test.timeout", "150s"},
			Faults: []Fault{
				{After: "FAULT-LINK", Action: LinkDown, Host: 1},
				{After: "FAULT-LINK", Delay: 2500 * time.Millisecond, Action: LinkUp, Host: 1},
				{After: "FAULT-KILL", Action: Kill, Host: 2},
			},
		}))
		for _, name := range []string{"KeyRevoked", "BadAddress", "Deregistered", "Loss", "ImmediatePressure", "LinkDown", "DeviceRemoved", "PeerKilled"} {
			out.has(t, "--- PASS: TestLabFaults/"+name)
		}
	})
}

// TestRoCECluster: prefill on one host, decode on the other, KV over queue pairs,
// every block checked.
func TestRoCECluster(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	files := append(build(t, dir, false, "cmd/proxy", "cmd/prefill", "cmd/decode", "cmd/kvbench"),
		File{From: "testdata/roce-profile.json"}, File{From: "testdata/roce-cluster.sh"})
	run(t, Config{
		NICs: 1, Until: 1, Memory: 1024, CPUs: 1, Timeout: 4 * time.Minute, Files: files, Out: dir,
		Command: []string{"sh", "/lab/roce-cluster.sh"},
	})
	for _, handoff := range []string{"pull", "layerwise"} {
		table, err := os.ReadFile(filepath.Join(dir, "host1", handoff, "table.md"))
		if err != nil {
			t.Fatal(err)
		}
		// requests, failed, duration, GB, blocks checked, bad; the prompts have 159.
		if !regexp.MustCompile(`\| ` + handoff + ` \|.* \| 10 \| 0 \| [0-9.]+ \| 0\.01 \| 159 \| 0 \|`).Match(table) {
			t.Errorf("%s: not 10 requests with 159 good blocks:\n%s", handoff, table)
		}
	}
}
