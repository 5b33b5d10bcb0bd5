package cli

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/transport/topology"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

const machines = "../../transport/topology/testdata"

func captured(name string) string { return filepath.Join(machines, "machines", name+".txt") }

// TestTopologyOfMachines: what is printed of each captured machine.
func TestTopologyOfMachines(t *testing.T) {
	t.Setenv("PCIDB_PATH", filepath.Join(machines, "pci.ids"))
	files, err := filepath.Glob(captured("*"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(t.Context(), "rail", "topo", "--root", file)
			if code != 0 || stderr != "" {
				t.Fatalf("exit %d: %s", code, stderr)
			}
			golden := filepath.Join("testdata", "topo-"+name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(stdout), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if stdout != string(want) {
				t.Errorf("%s is another, run go test ./internal/cli -update and look at the difference; got\n%s", golden, stdout)
			}
		})
	}
}

// TestTopologyRoundTrips: a capture of a machine says what the machine says, and a
// matrix that was printed can be given back.
func TestTopologyRoundTrips(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := command(t.Context(), append([]string{"rail", "topo"}, args...)...)
		if code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, stderr)
		}
		return stdout
	}
	root := captured("two-socket-2-nic")
	want := run("--root", root)
	for _, name := range []string{"capture.tar.gz", "capture.txt"} {
		file := filepath.Join(dir, name)
		if said := run("--root", root, "--capture", file); !strings.Contains(said, "No serial numbers or host names") {
			t.Errorf("the capture does not say what it contains: %s", said)
		}
		if got := run("--root", file); got != want {
			t.Errorf("%s says\n%s\nthe machine\n%s", name, got, want)
		}
	}

	printed := run("--root", root, "--format", "matrix", "--names", "rdma")
	file := filepath.Join(dir, "matrix.json")
	if err := os.WriteFile(file, []byte(printed), 0o644); err != nil {
		t.Fatal(err)
	}
	var mooncake map[string][2][]string
	if err := json.Unmarshal([]byte(printed), &mooncake); err != nil || mooncake["cpu:1"][0][0] != "mlx5_1" || mooncake["cpu:1"][1][0] != "mlx5_0" {
		t.Errorf("%v, %v: not Mooncake's form of the matrix", mooncake, err)
	}
	matrix, err := topology.ParseMatrix([]byte(run("--root", root, "--matrix", file, "--format", "matrix")))
	if err != nil || matrix.Rank("cpu:1", "ens2f0np0") != topology.RankPreferred || matrix.Rank("cpu:1", "eno1") != topology.RankExcluded {
		t.Errorf("%v, %v: want the devices' interfaces, and no others", matrix, err)
	}

	var out struct {
		NICs     []topology.NIC `json:"nics"`
		Matrix   map[string]any
		Pairs    []topologyPairText
		Warnings []topology.Warning
	}
	if err := json.Unmarshal([]byte(run("--root", root, "--format", "json", "--exclude", "eno*")), &out); err != nil {
		t.Fatal(err)
	}
	if len(out.NICs) != 6 || len(out.Matrix) != 2 || len(out.Warnings) != 1 ||
		out.Pairs[len(out.Pairs)-1] != (topologyPairText{"cpu:1", "ens1f0np0.100", "available", "across sockets"}) {
		t.Errorf("%+v", out)
	}
}

type topologyPairText struct{ Location, NIC, Choice, Why string }

func TestTopologyUsage(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(broken, []byte(`{"cpu:0": ["eth0"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"--format yaml --names some --include eth[", ExitUsage, []string{"--format", "--names", `--include: "eth[": write a name`}},
		{"--matrix " + broken, ExitUsage, []string{"--matrix", broken, `location "cpu:0"`}},
		{"--matrix nowhere.json", ExitUsage, []string{"--matrix", "nowhere.json"}},
		{"--capture x.tar.gz --format json --exclude eth0", ExitUsage, []string{"--format", "--exclude", "leave it out"}},
		{"--root nowhere", ExitUsage, []string{`--root: "nowhere": there is no such file`, "folder that has sys in it"}},
		{"--root /sys", ExitUsage, []string{"not sys itself"}},
		{"--root " + captured("laptop") + " --capture /nowhere/x", ExitUsage, []string{`--capture: "/nowhere/x": there is no such file`}},
		{"eth0", ExitUsage, []string{"eth0"}},
	} {
		code, _, stderr := command(t.Context(), append([]string{"rail", "topo"}, strings.Fields(c.args)...)...)
		if code != c.code {
			t.Errorf("%s: exit %d, want %d: %s", c.args, code, c.code, stderr)
		}
		for _, want := range c.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%s: stderr does not say %q:\n%s", c.args, want, stderr)
			}
		}
	}
}
