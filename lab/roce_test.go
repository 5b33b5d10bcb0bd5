package lab

import (
	"errors"
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

// A lab that runs for longer than hang is taken to hang: without KVM, on a busy machine,
// the longest takes three minutes. The test inside gives up first and prints its goroutines.
const (
	hang  = 8 * time.Minute
	hangs = "-test.timeout=7m"
)

// compile has a program of this module made for the hosts.
func compile(t *testing.T, pkg string, command ...string) File {
	t.Helper()
	name := filepath.Base(pkg)
	if command[0] == "test" {
		name += ".test" // a host's own rdma is another program
	}
	out := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("go", append(command, "-ldflags", "-s -w", "-o", out, "./"+pkg)...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return File{From: out}
}

// run boots a lab that must succeed, and returns what it printed.
func run(t *testing.T, cfg Config) string {
	t.Helper()
	var out lines
	cfg.Stdout, cfg.Stderr, cfg.Log = &out, &out, &out
	r, err := Run(t.Context(), cfg)
	if errors.Is(err, ErrPanic) {
		t.Logf("a host's kernel panicked, which is the emulation's fault: the lab is started once more\n%v", err)
		out = lines{}
		if cfg.Out != "" {
			if err := os.RemoveAll(cfg.Out); err != nil {
				t.Fatal(err)
			}
		}
		cfg.Stdout, cfg.Stderr, cfg.Log = &out, &out, &out
		r, err = Run(t.Context(), cfg)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if r.ExitCode() != 0 {
		t.Fatalf("exit status %d\n%s", r.ExitCode(), out.String())
	}
	return out.String()
}

// TestRoCERail runs the contract of transporttest on one host, and the faults between
// two hosts, of which the lab does two: it pulls a cable and it cuts the power. With one
// queue pair the contract runs in TestRoCEAddressSanitizer, but for WriteAndRead.
func TestRoCERail(t *testing.T) {
	needLab(t)
	bin := compile(t, "transport/rdma", "test", "-c").From
	t.Run("Contract", func(t *testing.T) {
		out := lines{}
		out.WriteString(run(t, Config{
			Hosts: 1, NICs: 1, CPUs: runtime.NumCPU(), Timeout: hang, Env: []string{"KVFERRY_RDMA=rxe0"},
			Command: []string{bin, "-test.run", "TestVerbsContract/three|TestVerbsContract/default/WriteAndRead|TestVerbsDMABuf", "-test.v", hangs},
		}))
		out.has(t, "--- PASS: TestVerbsContract/default/WriteAndRead", "--- PASS: TestVerbsContract/three_shallow_queue_pairs/PeerClose", "--- PASS: TestVerbsDMABuf")
	})
	t.Run("Faults", func(t *testing.T) {
		out := lines{}
		out.WriteString(run(t, Config{
			Until: 1, Timeout: hang,
			Command: []string{bin, "-test.run", "TestLabFaults", "-test.v", hangs},
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

// TestRoCEAddressSanitizer: the C of the rail under AddressSanitizer. What moves
// much is left out: filling memory takes a minute there.
func TestRoCEAddressSanitizer(t *testing.T) {
	needLab(t)
	bin := compile(t, "transport/rdma", "test", "-c", "-asan").From
	out := lines{}
	out.WriteString(run(t, Config{
		Hosts: 1, NICs: 1, CPUs: runtime.NumCPU(), Memory: 1536, Timeout: hang, Env: []string{"KVFERRY_RDMA=rxe0"},
		Command: []string{bin, "-test.run", "TestVerbsContract/default/[^W]", "-test.v", hangs},
	}))
	out.has(t, "--- PASS: TestVerbsContract/default/ManySlices", "--- PASS: TestVerbsContract/default/DeregisterUnderLoad", "--- PASS: TestVerbsContract/default/RailClose")
}

// TestRoCECluster: prefill on one host, decode on the other, KV over two RoCE NICs,
// every block checked.
func TestRoCECluster(t *testing.T) {
	needLab(t)
	dir := t.TempDir()
	files := []File{{From: "testdata/roce-profile.json"}, {From: "testdata/roce-cluster.sh"}}
	for _, name := range []string{"proxy", "prefill", "decode", "kvferry"} {
		files = append(files, compile(t, "cmd/"+name, "build"))
	}
	run(t, Config{
		NICs: 2, Until: 1, Memory: 1024, CPUs: 1, Timeout: hang, Files: files, Out: dir,
		Command: []string{"sh", "/lab/roce-cluster.sh"},
	})
	for _, handoff := range []string{"pull", "layerwise"} {
		table, err := os.ReadFile(filepath.Join(dir, "host1", handoff, "table.md"))
		if err != nil {
			t.Fatal(err)
		}
		// requests, failed, duration, GB, blocks checked, bad; the prompts have 159. An
		// emulated host's timers are late: the row may be marked as disturbed.
		if !regexp.MustCompile(`\| ` + handoff + `( ~)? \|.* \| 10 \| 0 \| [0-9.]+ \| 0\.01 \| 159 \| 0 \|`).Match(table) {
			t.Errorf("%s: not 10 requests with 159 good blocks:\n%s", handoff, table)
		}
		rails, err := os.ReadFile(filepath.Join(dir, "host1", handoff, "rails"))
		if err != nil {
			t.Fatal(err)
		}
		node, op := "decode-0", "read"
		if handoff == "layerwise" {
			node, op = "prefill-0", "write"
		}
		for _, rail := range []string{"rdma/rxe0", "rdma/rxe1"} {
			if !regexp.MustCompile(`rail_bytes_total\{engine="` + node + `",op="` + op + `",rail="` + rail + `"\} [1-9]`).Match(rails) {
				t.Errorf("%s: %s has moved nothing over %s:\n%s", handoff, node, rail, rails)
			}
		}
	}
}
