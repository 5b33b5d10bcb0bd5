package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestFallback: without a NIC there is loopback, in a container its veth.
func TestFallback(t *testing.T) {
	b := newBoard()
	b.node(0, 0, "0-1", 4, "10")
	b.loopback()
	matrix, warnings := chosen(t, discoverSnapshot(t, b.s), Options{})
	if !reflect.DeepEqual(matrix["cpu:0"], Choice{Preferred: []string{"lo"}}) || !strings.Contains(warnings, "reaches only this machine") {
		t.Errorf("%v, %s", matrix, warnings)
	}
	b.ethernet("", "eth0", linkUp, 10000)
	matrix, warnings = chosen(t, discoverSnapshot(t, b.s), Options{})
	if !reflect.DeepEqual(matrix["cpu:0"], Choice{Preferred: []string{"eth0"}}) || !strings.Contains(warnings, "as in a container") {
		t.Errorf("%v, %s", matrix, warnings)
	}
}

// TestRDMAOwners: which interface an RDMA device belongs to, in each of the ways
// that sysfs tells.
func TestRDMAOwners(t *testing.T) {
	b := newBoard()
	pci := func(function int) string {
		return b.pci(fmt.Sprintf("pci0000:00/0000:00:01.%d", function), card{ids: "15b3:101d", class: "020000", node: 0})
	}
	b.node(0, 0, "0", 1, "10")
	// A VLAN's GIDs are on the device of the interface below.
	one := pci(0)
	b.ethernet(one, "eth0", linkUp, 1000)
	b.link(b.interfacePath("eth0"), b.ethernet("", "eth0.7", linkUp, 1000), "lower_eth0")
	b.rdma(one, "mlx5_0", "4: ACTIVE", "", "Ethernet", "eth0", "eth0.7")
	// The device of a bond is none of its slaves', though it is of a slave's function.
	two := pci(1)
	bond := b.ethernet("", "bond0", linkUp, 2000)
	b.link(bond, b.ethernet(two, "eth1", linkUp, 1000), "master")
	b.link(b.interfacePath("eth1"), bond, "lower_eth1")
	b.rdma(two, "mlx5_bond_0", "4: ACTIVE", "", "Ethernet", "bond0", "bond0")
	// The switch's side of a virtual function has the card's function, too.
	three := pci(2)
	b.ethernet(three, "eth2", linkUp, 1000)
	b.file("pf0vf3", b.ethernet(three, "eth2_3", linkUp, 1000), "phys_port_name")
	b.rdma(three, "mlx5_2", "4: ACTIVE", "", "InfiniBand")
	// Software: no device link, but a parent; and one that says nothing.
	soft := "sys/devices/virtual"
	for _, name := range []string{"rxe0", "siw9"} {
		b.rdma(soft, name, "4: ACTIVE", "", "Ethernet")
		delete(b.s, filepath.Join(soft, "infiniband", name, "device"))
	}
	delete(b.s, filepath.Join(soft, "device"))
	b.file("eth2", soft, "infiniband/rxe0/parent")

	m := discoverSnapshot(t, b.s)
	got := map[string][]string{}
	for _, n := range m.NICs {
		for _, d := range n.RDMA {
			got[d.Name] = append(got[d.Name], n.Name)
		}
	}
	want := map[string][]string{"mlx5_0": {"eth0"}, "mlx5_bond_0": {"bond0"}, "mlx5_2": {"eth2"}, "rxe0": {"eth2"}, "siw9": {"siw9"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	matrix, warnings := chosen(t, m, Options{})
	if got, want := matrix["cpu:0"].Preferred, []string{"mlx5_bond_0", "bond0", "mlx5_0", "eth0", "eth0.7", "mlx5_2", "rxe0", "eth2"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, want := range []string{"eth1 is a part of bond0", "siw9 is an RDMA device whose network interface is not to be seen"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no %q in %s", want, warnings)
		}
	}
}

// interfacePath is where an interface is.
func (b *board) interfacePath(name string) string {
	at := filepath.Join(netFolder, filepath.Dir(b.s[filepath.Join(netFolder, name)].Link), name)
	return filepath.Clean(at)
}

// TestNetVSC: the interface of a hypervisor's switch is where the virtual function
// below it is, whose own interface has no addresses.
func TestNetVSC(t *testing.T) {
	b := newBoard()
	b.node(0, 0, "0", 1, "10 21")
	b.node(1, 1, "1", 1, "21 10")
	vf := b.pci("pci0001:00/0001:00:02.0", card{ids: "15b3:101a", class: "020000", driver: "mlx5_core", node: 1})
	lower := b.ethernet(vf, "enP1s1", linkUp, 50000)
	upper := b.ethernet("sys/devices/LNXSYSTM:00/VMBUS:00/000d3a00", "eth0", linkUp, 50000)
	b.link(lower, upper, "lower_enP1s1")
	b.link(upper, lower, "master")
	b.rdma(vf, "mlx5_an0", "4: ACTIVE", "50 Gb/sec (1X HDR)", "Ethernet", "enP1s1")
	m := discoverSnapshot(t, b.s)
	if r := m.Why("cpu:1", "eth0"); r.Nearness != SameNode {
		t.Errorf("eth0 from cpu:1: %v", r)
	}
	if matrix, _ := chosen(t, m, Options{}); !slices.Equal(matrix["cpu:0"].Preferred, []string{"mlx5_an0", "eth0"}) {
		t.Errorf("%v", matrix)
	}
}

// TestNarrowGPU: fewer lanes are told, slower ones of an idle GPU are not.
func TestNarrowGPU(t *testing.T) {
	b := newBoard()
	b.node(0, 0, "0", 1, "10")
	for i, l := range []Link{{2.5, 16, 16, 16}, {16, 8, 16, 16}} {
		b.pci(fmt.Sprintf("pci0000:00/0000:00:0%d.0", i+1), card{"10de:2330", "030200", "nvidia", 0, l})
	}
	b.loopback()
	_, warnings := chosen(t, discoverSnapshot(t, b.s), Options{})
	if strings.Contains(warnings, "cuda:0") || !strings.Contains(warnings, "cuda:1 at 0000:00:02.0 has a PCIe link of 8 lanes") {
		t.Error(warnings)
	}
}

// TestNearestNode: of four nodes on two sockets, the NIC on the other node of the
// socket is preferred where a node has none; and memory without CPUs is a
// location.
func TestNearestNode(t *testing.T) {
	b := newBoard()
	b.node(0, 0, "0-3", 4, "10 12 21 21 30")
	b.node(1, 0, "4-7", 4, "12 10 21 21 30")
	b.node(2, 1, "8-11", 4, "21 21 10 12 30")
	b.node(3, 1, "12-15", 4, "21 21 12 10 30")
	b.node(4, -1, "", 64, "30 30 28 30 10") // a memory expander on node 2's socket
	for i, node := range []int{1, 2} {
		at := b.pci(fmt.Sprintf("pci0000:%d0/0000:%[1]d0:01.0", i+1), card{ids: "15b3:101d", class: "020000", node: node})
		b.ethernet(at, fmt.Sprintf("eth%d", i), linkUp, 100000)
	}
	m := discoverSnapshot(t, b.s)
	matrix, warnings := chosen(t, m, Options{})
	for location, want := range map[string]string{"cpu:0": "eth0", "cpu:1": "eth0", "cpu:2": "eth1", "cpu:3": "eth1", "cpu:4": "eth1"} {
		if row := matrix[location]; !slices.Equal(row.Preferred, []string{want}) || len(row.Available) != 1 {
			t.Errorf("%s: %v, want %s preferred", location, row, want)
		}
	}
	if r := m.Why("cpu:0", "eth0"); r.Nearness != SameSocket || r.Distance != 12 {
		t.Errorf("eth0 from cpu:0: %v", r)
	}
	if warnings != "" {
		t.Error(warnings)
	}
	// Both on one socket: the other is told.
	b.file("0", "sys/devices/pci0000:20/0000:20:01.0/numa_node")
	if _, warnings := chosen(t, discoverSnapshot(t, b.s), Options{}); !strings.Contains(warnings, "NUMA node 3 has no NIC that is used") {
		t.Errorf("no warning about nodes 2 and 3: %s", warnings)
	}
}

func TestDiscoverErrors(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "machine.txt")
	for _, c := range []struct{ root, content, want string }{
		{filepath.Join(dir, "none"), "", "name a folder that has sys in it"},
		{dir, "", "there is no sys/class/net"},
		{text, "sys/a", `line 1: "sys/a": write PATH = VALUE`},
		{text, "# note\n\n../a = 1", `line 3: path "../a" is not a plain one`},
		{text, "sys/a -> ", "line 1: a symlink to nothing"},
		{text, `sys/a = "b`, "is not quoted as in Go"},
		{text, "\x1f\x8bnot gzip", "make a capture with kvferry rail topo --capture"},
		{text, "sys/a = 1", "there is no sys/class/net"},
	} {
		if c.content != "" {
			if err := os.WriteFile(text, []byte(c.content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Discover(c.root); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.root) {
			t.Errorf("%s (%q): %v, want %q", c.root, c.content, err, c.want)
		}
	}
}

// TestEscape: a capture comes from anybody, and its symlinks stay inside.
func TestEscape(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Snapshot{
		{"a": {Link: secret}},
		{"a": {Link: "../../.."}},
		{"d/e/up": {Link: "../.."}, "d/e/out": {Link: "up/.."}},
	} {
		if err := s.extract(t.TempDir()); err == nil || !strings.Contains(err.Error(), "symlink") {
			t.Errorf("%v: %v, want an error", s, err)
		}
	}
	// A folder of somebody's is read as it is, but not what lies outside.
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sys/class/net/eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, target := range map[string]string{"speed": secret, "loop": "loop", "operstate": "../../../../../../../../../.." + secret} {
		if err := os.Symlink(target, filepath.Join(dir, "sys/class/net/eth0", file)); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for _, file := range []string{"speed", "loop", "operstate"} {
		if got := tr.read(netFolder, "eth0", file); got != "" {
			t.Errorf("%s: read %q", file, got)
		}
	}
}

// FuzzParseSnapshot: what is read can be written as text and is then the same.
func FuzzParseSnapshot(f *testing.F) {
	f.Add("# note\nsys/a -> ../b\nsys/c = 1\nsys/d = \"x\\ny\"\nsys/e/\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSnapshot(text)
		if err != nil {
			return
		}
		once := s.Text()
		again, err := parseSnapshot(once)
		if err != nil {
			t.Fatalf("%q: %v", once, err)
		}
		if twice := again.Text(); twice != once {
			t.Fatalf("%q, then %q", once, twice)
		}
	})
}

func TestCompareNames(t *testing.T) {
	want := []string{"*", "cpu:0", "cpu:2", "cpu:10", "cuda:0", "eth01", "eth1", "eth1.5", "eth2", "eth10", "lo"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareNames)
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestHidden: a capture keeps which networks are the same and nothing else of them.
func TestHidden(t *testing.T) {
	got := hideRoutes(strings.Join([]string{
		"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT",
		"eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0",
		"eth0\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0",
		"eth1\t000300C0\t00000000\t0001\t0\t0\t101\t00FFFFFF\t0\t0\t0",
		"eth2\t000200C0\t00000000\t0001\t0\t0\t102\t00FFFFFF\t0\t0\t0",
	}, "\n"))
	want := "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n" +
		"eth0\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\n" +
		"eth1\t0000010A\t00000000\t0001\t0\t0\t101\t00FFFFFF\n" +
		"eth2\t0000000A\t00000000\t0001\t0\t0\t102\t00FFFFFF\n"
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := hideAddresses("fd000000000000000000000000000002 04 40 00 82     eth0\n"); got != "00000000000000000000000000000000 04 40 00 82 eth0\n" {
		t.Errorf("%q", got)
	}
}
