package topology

import (
	"os"
	"path/filepath"
	"testing"
)

// What drivers and hypervisors say of a link that is none is no link.
func TestReadLink(t *testing.T) {
	for _, c := range []struct {
		speed, width string
		want         Link
	}{
		{"32.0 GT/s PCIe", "16", Link{Speed: 32, Width: 16, MaxSpeed: 32, MaxWidth: 16}},
		{"2.5 GT/s PCIe", "32", Link{Speed: 2.5, Width: 32, MaxSpeed: 32, MaxWidth: 16}},
		{"Unknown", "16", Link{}},
		{"0.0 GT/s PCIe", "16", Link{}},
		{"1000 GT/s PCIe", "16", Link{}},
		{"8.0 GT/s PCIe", "0", Link{}},
		{"8.0 GT/s PCIe", "33", Link{}},
		{"8.0 GT/s PCIe", "255", Link{}},
		{"8.0 GT/s PCIe", "", Link{}},
		{"", "16", Link{}},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"current_link_speed": c.speed, "current_link_width": c.width, "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tr, err := openTree(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got := readLink(tr, "."); got != c.want {
			t.Errorf("%q and width %q: %+v, want %+v", c.speed, c.width, got, c.want)
		}
		tr.close()
	}
}

// A file beside the interfaces is none: bonding has its list of masters there.
func TestFileIsNoInterface(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, netFolder, "eth0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, netFolder, "bonding_masters"), []byte("bond0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	tr, err := openTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for name, want := range map[string]bool{"eth0": true, "bonding_masters": false, "eth1": false} {
		if _, ok := readInterface(tr, name, map[string]*device{}); ok != want {
			t.Errorf("%s is an interface: %v, want %v", name, ok, want)
		}
	}
}
