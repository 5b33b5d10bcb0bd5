package topology

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/machines")

// machines are the captures; a func makes one that is put together here, none has
// it that is real.
var machines = map[string]func() Snapshot{
	"laptop":           laptop,
	"two-socket-2-nic": twoSockets,
	"hgx-8-gpu-8-nic":  eightGPUs,
	"cloud-vm":         cloudVM,
	"lab-numa-4-nic":   nil,
}

func machineFile(name string) string { return filepath.Join("testdata", "machines", name+".txt") }

// TestSynthesized: the captures of machines that are put together are what
// synthesize_test.go makes.
func TestSynthesized(t *testing.T) {
	for name, synthesize := range machines {
		if synthesize != nil {
			golden(t, machineFile(name), "# Put together by synthesize_test.go, not captured: see ../README.md.\n"+synthesize().Text())
		}
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is another, run go test ./transport/topology -update and look at the difference; got\n%s", file, got)
	}
}

// namesOf gives ghw a pci.ids of a few lines: that of this machine may be any, or
// missing.
func namesOf(t *testing.T) { t.Setenv("PCIDB_PATH", filepath.Join("testdata", "pci.ids")) }

// TestMachines: the matrix of each capture, the reason of every pair, and warnings.
func TestMachines(t *testing.T) {
	namesOf(t)
	for name := range machines {
		t.Run(name, func(t *testing.T) {
			m, err := Discover(machineFile(name))
			if err != nil {
				t.Fatal(err)
			}
			matrix, warnings, err := m.Matrix(Options{})
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "machines", name+".matrix.json"), string(matrix.Encode()))
			var b strings.Builder
			for _, location := range matrix.Locations() {
				for _, nic := range m.NICs {
					fmt.Fprintf(&b, "%-7s %-15s %s\n", location, nic.Name, m.Why(location, nic.Name))
				}
			}
			for _, w := range warnings {
				fmt.Fprintf(&b, "warning: %s\n", w)
			}
			golden(t, filepath.Join("testdata", "machines", name+".why.golden"), b.String())
		})
	}
}

// TestCaptureOfCapture: a capture discovers as the machine does, and so does a
// capture of it, as text and as .tar.gz.
func TestCaptureOfCapture(t *testing.T) {
	namesOf(t)
	for name := range machines {
		t.Run(name, func(t *testing.T) {
			want, err := Discover(machineFile(name))
			if err != nil {
				t.Fatal(err)
			}
			first, err := Capture(machineFile(name))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "machine.tar.gz")
			f, err := os.Create(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := first.Write(f); err != nil {
				t.Fatal(err)
			}
			if info, err := f.Stat(); err != nil || info.Size() > 100e3 {
				t.Errorf("%d bytes, %v: too large to send", info.Size(), err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			second, err := Capture(file)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := first.Text(), second.Text(); a != b {
				t.Errorf("capture\n%s\nof it\n%s", a, b)
			}
			got, err := Discover(file)
			if err != nil {
				t.Fatal(err)
			}
			same(t, got, want)
		})
	}
}

func same(t *testing.T, got, want *Machine) {
	t.Helper()
	a, _ := json.MarshalIndent(got, "", " ")
	b, _ := json.MarshalIndent(want, "", " ")
	if string(a) != string(b) {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

// TestLiveCapture: a capture of this machine, whatever it is, discovers the same.
func TestLiveCapture(t *testing.T) {
	var live *Machine
	var s Snapshot
	if err := withTree("/", func(tr *tree) error {
		live, s = capture(tr)
		return nil
	}); err != nil {
		t.Skipf("no Linux machine: %v", err)
	}
	dir := t.TempDir()
	if err := s.extract(dir); err != nil {
		t.Fatal(err)
	}
	captured, err := Discover(dir)
	if err != nil {
		t.Fatal(err)
	}
	same(t, captured, live)
}

// TestWithoutGHW: where ghw stops, for want of pci.ids or of a node's files, the
// machine is the same but for names.
func TestWithoutGHW(t *testing.T) {
	for name := range machines {
		t.Run(name, func(t *testing.T) {
			namesOf(t)
			want, err := Discover(machineFile(name))
			if err != nil {
				t.Fatal(err)
			}
			s, err := openSnapshot(machineFile(name))
			if err != nil {
				t.Fatal(err)
			}
			for file := range s {
				if strings.HasSuffix(file, "/hugepages") || strings.HasSuffix(file, "/modalias") {
					delete(s, file)
				}
			}
			dir := t.TempDir()
			if err := s.extract(dir); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PCIDB_PATH", filepath.Join(dir, "none"))
			got, err := Discover(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range []*Machine{got, want} {
				for i := range m.NICs {
					m.NICs[i].Model = ""
				}
				for i := range m.GPUs {
					m.GPUs[i].Model = ""
				}
			}
			same(t, got, want)
		})
	}
}

// TestLabMachine is the acceptance of the whole: memory of node 1 goes by the NICs
// of node 1, under both names, and the other way round.
func TestLabMachine(t *testing.T) {
	m, err := Discover(machineFile("lab-numa-4-nic"))
	if err != nil {
		t.Fatal(err)
	}
	matrix, _, err := m.Matrix(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		for node := range 2 {
			for _, nic := range []string{"eth", "rxe"} {
				nic = fmt.Sprint(nic, i)
				want := RankAvailable
				if i/2 == node {
					want = RankPreferred
				}
				if got := matrix.Rank(fmt.Sprintf("cpu:%d", node), nic); got != want {
					t.Errorf("%s for cpu:%d: rank %d, want %d", nic, node, got, want)
				}
			}
		}
	}
	if matrix.Rank("cpu:0", "lo") != RankExcluded || !slices.Equal(matrix["cpu:1"].Preferred, []string{"rxe2", "eth2", "rxe3", "eth3"}) {
		t.Errorf("%v", matrix)
	}
}
