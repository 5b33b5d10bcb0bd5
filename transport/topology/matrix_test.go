package topology

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// mooncake is a matrix as Mooncake's documentation shows it: RDMA devices only.
const mooncake = `{
  "cpu:0": [["mlx5_0", "mlx5_1"], ["mlx5_2"]],
  "cuda:0": [["mlx5_0"], ["mlx5_1"]]
}`

func TestRank(t *testing.T) {
	m, err := ParseMatrix([]byte(mooncake))
	if err != nil {
		t.Fatal(err)
	}
	withAny, err := ParseMatrix([]byte(`{"cpu:0": [["a"], ["b"]], "*": [["b"]]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		m             Matrix
		location, nic string
		want          int
	}{
		{m, "cpu:0", "mlx5_1", RankPreferred},
		{m, "cpu:0", "mlx5_2", RankAvailable},
		{m, "cpu:0", "mlx5_3", RankExcluded},
		{m, "cuda:0", "mlx5_2", RankExcluded},
		{m, "cpu:7", "mlx5_2", RankPreferred}, // no row: any NIC of the matrix
		{m, Any, "mlx5_2", RankPreferred},
		{m, "", "mlx5_2", RankPreferred},
		{m, "cpu:7", "mlx5_9", RankExcluded},
		{withAny, "cpu:0", "b", RankAvailable},
		{withAny, "cpu:1", "b", RankPreferred},
		{withAny, "cpu:1", "a", RankExcluded},
		{m, "cpu:0", "rdma/mlx5_2", RankAvailable}, // a rail
		{m, "cpu:0", "tcp/0", RankExcluded},        // one by its address
		{nil, "cpu:0", "tcp/0", RankPreferred},
		{nil, "cpu:0", "eth0", RankPreferred},
	} {
		if got := c.m.Rank(c.location, c.nic); got != c.want {
			t.Errorf("%s of %v for %q: rank %d, want %d", c.nic, c.m, c.location, got, c.want)
		}
	}
}

func TestParseMatrix(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "not a matrix (EOF): write {"},
		{`[]`, "not a matrix: write {"},
		{`{}`, "no location in it: write {"},
		{`{"cpu:0": `, `location "cpu:0": EOF`},
		{`{"cpu:0": [["a"]]`, "after location 1: "},
		{`{"cpu:0": [["a"]]} {}`, "something follows the matrix: leave it out"},
		{`{"cpu:0": [["a"]], "cpu:0": [["b"]]}`, `location "cpu:0" is there twice: leave one out`},
		{`{"cpu0": [["a"]]}`, `location "cpu0" is no location: write cpu:0 for a NUMA node`},
		{`{"cpu:0": ["a"]}`, `location "cpu:0" has a string where a list of lists of names is due: write [[`},
		{`{"cpu:0": [[1]]}`, `location "cpu:0" has a number where`},
		{`{"cpu:0": null}`, `location "cpu:0" has 0 lists`},
		{`{"cpu:0": [["a"], ["b"], ["c"]]}`, `location "cpu:0" has 3 lists`},
		{`{"cpu:0": [["a"], ["a"]]}`, `location "cpu:0" has a twice`},
		{`{"cpu:0": [["tcp/eth0"]]}`, `location "cpu:0" has a NIC "tcp/eth0": write the name of an interface`},
		{`{"cpu:0": [[""]]}`, `has a NIC ""`},
		{`{"cpu:0": [[], []]}`, `location "cpu:0" has no NIC: memory there could not be moved`},
		{`{"x": 1, "y": 2}`, `location "y" has a number`}, // all faults, not the first
	} {
		_, err := ParseMatrix([]byte(c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
	file := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(file, []byte(`{"cpu:0": 1, "cpu:1": 2}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadMatrix(file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "cpu:1") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v: want one line with the file and both faults", err)
	}
}

// FuzzParseMatrix: what is read can be written, and is then read the same.
func FuzzParseMatrix(f *testing.F) {
	for _, text := range []string{mooncake, `{}`, `{"*":[["a"]]}`, `{"cpu:0":[[],["a"]]}`, `{"cpu:0":null}`, `{"cpu:0":[["a"]],"cpu:0":[["b"]]}`, `[`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseMatrix(text)
		if err != nil {
			return
		}
		again, err := ParseMatrix(m.Encode())
		if err != nil {
			t.Fatalf("%s\nwas read from %s: %v", m.Encode(), text, err)
		}
		if len(again) != len(m) {
			t.Fatalf("%v, then %v", m, again)
		}
		for location, row := range m {
			for _, nic := range row.Preferred {
				if again.Rank(location, nic) != RankPreferred {
					t.Fatalf("%s is not preferred for %s in %v", nic, location, again)
				}
			}
			for _, nic := range row.Available {
				if again.Rank(location, nic) != RankAvailable {
					t.Fatalf("%s is not available for %s in %v", nic, location, again)
				}
			}
		}
	})
}

// discoverSnapshot is the machine of a snapshot.
func discoverSnapshot(t *testing.T, s Snapshot) *Machine {
	t.Helper()
	dir := t.TempDir()
	if err := s.extract(dir); err != nil {
		t.Fatal(err)
	}
	m, err := Discover(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func chosen(t *testing.T, m *Machine, o Options) (Matrix, string) {
	t.Helper()
	matrix, warnings, err := m.Matrix(o)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, w := range warnings {
		b.WriteString(w.String() + "\n")
	}
	return matrix, b.String()
}

func TestOptions(t *testing.T) {
	m := discoverSnapshot(t, twoSockets())
	for _, c := range []struct {
		name string
		o    Options
		want Choice // of cpu:0
	}{
		{"exclude by either name", Options{Exclude: []string{"mlx5_1", "eno*", "ens1f0np0.100"}}, Choice{Preferred: []string{"mlx5_0", "ens1f0np0"}}},
		{"include", Options{Include: []string{"ens[12]f0np0"}}, Choice{[]string{"mlx5_0", "ens1f0np0"}, []string{"mlx5_1", "ens2f0np0"}}},
		{"exclude has the last word", Options{Include: []string{"mlx5_*"}, Exclude: []string{"mlx5_0"}}, Choice{Preferred: []string{"mlx5_1", "ens2f0np0"}}},
		{"include what is down, and lo", Options{Include: []string{"eno2", "lo"}}, Choice{Preferred: []string{"eno2", "lo"}}},
		{"RDMA names", Options{Names: RDMANames}, Choice{[]string{"mlx5_0"}, []string{"mlx5_1"}}},
		{"interfaces", Options{Names: NetNames, Exclude: []string{"eno*", "*.100"}}, Choice{[]string{"ens1f0np0"}, []string{"ens2f0np0"}}},
	} {
		matrix, _ := chosen(t, m, c.o)
		if got := matrix["cpu:0"]; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}

	if _, _, err := m.Matrix(Options{Include: []string{"eth["}, Exclude: []string{""}, Names: "some"}); err == nil ||
		!strings.Contains(err.Error(), `Include[0]: "eth[": `) || !strings.Contains(err.Error(), "Exclude[0]: none given") || !strings.Contains(err.Error(), `Names: "some": use all, rdma or net`) {
		t.Errorf("%v: want all three faults", err)
	}
	for _, o := range []Options{{Include: []string{"nothing"}}, {Exclude: []string{"e*"}}} { // not loopback instead
		if matrix, warnings := chosen(t, m, o); len(matrix) != 0 || !strings.Contains(warnings, "no NIC is left") {
			t.Errorf("%v: %v, %s", o, matrix, warnings)
		}
	}
	if matrix, warnings := chosen(t, discoverSnapshot(t, laptop()), Options{Names: RDMANames}); len(matrix) != 0 || !strings.Contains(warnings, "no NIC has an RDMA device") {
		t.Errorf("%v, %s", matrix, warnings)
	}
	// What is wrong with a NIC that is excluded is of no interest, but that its node
	// has none then is.
	if _, warnings := chosen(t, m, Options{Exclude: []string{"eno*", "mlx5_1"}}); !strings.HasPrefix(warnings, "NUMA node 1 has no NIC that is used") || strings.Count(warnings, "\n") != 1 {
		t.Errorf("warnings: %s", warnings)
	}
}

// TestOverride: rows replace those found, RDMA devices stand for their interfaces
// too, and names that this machine has not are pointed out.
func TestOverride(t *testing.T) {
	m := discoverSnapshot(t, twoSockets())
	override, err := ParseMatrix([]byte(`{"cpu:0": [["mlx5_1"], ["mlx5_0", "mlx5_7"]], "cuda:3": [["eno1"]]}`))
	if err != nil {
		t.Fatal(err)
	}
	matrix, warnings := chosen(t, m, Options{Override: override, Exclude: []string{"eno1"}})
	for location, want := range map[string]Choice{
		"cpu:0":  {[]string{"mlx5_1", "ens2f0np0"}, []string{"mlx5_0", "ens1f0np0", "mlx5_7"}},
		"cpu:1":  {[]string{"mlx5_1", "ens2f0np0"}, []string{"mlx5_0", "ens1f0np0", "ens1f0np0.100"}},
		"cuda:3": {}, // its only NIC is excluded
	} {
		if got := matrix[location]; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", location, got, want)
		}
	}
	for _, want := range []string{"a row for cuda:3, which this machine has not", "names mlx5_7, which is no NIC of this machine"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no %q in %s", want, warnings)
		}
	}
	// What is printed can be given back.
	found, _ := chosen(t, m, Options{})
	back, err := ParseMatrix(found.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := chosen(t, m, Options{Override: back}); string(again.Encode()) != string(found.Encode()) {
		t.Errorf("%s\nwas given, and became\n%s", found.Encode(), again.Encode())
	}
}
