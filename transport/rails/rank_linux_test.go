package rails

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// TestRanks: what a matrix says of rails by their NIC, also of one that is given by
// its address; a rail that it does not know comes last; a matrix that cannot be read
// is an error.
func TestRanks(t *testing.T) {
	lo := ""
	all, _ := net.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback != 0 {
			lo = i.Name
		}
	}
	if lo == "" {
		t.Skip("no loopback interface")
	}
	opened, err := OpenAll([]string{"tcp/" + lo, "127.0.0.1:0"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	n := transporttest.NewNetwork()
	opened = append(opened, n.Rail("x"))
	t.Cleanup(func() {
		for _, r := range opened {
			r.Close()
		}
	})
	file := filepath.Join(t.TempDir(), "matrix.json")
	if err := os.WriteFile(file, []byte(`{"cpu:0": [["`+lo+`"], []], "cpu:1": [[], ["`+lo+`"]]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	rank, err := Ranks(opened, file, log)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		location, rail string
		want           int
	}{
		{"cpu:0", "tcp/" + lo, 0}, {"cpu:0", "tcp/1", 0}, {"cpu:1", "tcp/" + lo, 1}, {"cpu:1", "tcp/1", 1}, {"cpu:0", "mem/x", 2},
	} {
		if got := rank(c.location, c.rail); got != c.want {
			t.Errorf("%s, %s: %d, want %d", c.location, c.rail, got, c.want)
		}
	}
	if rank, err := Ranks(opened[:1], file, log); rank != nil || err != nil {
		t.Errorf("one rail: %v", err)
	}
	for _, text := range []string{`{"cpu:0": 7}`, ``} {
		os.WriteFile(file, []byte(text), 0o644)
		if _, err := Ranks(opened[:1], file, log); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("matrix %q: %v", text, err)
		}
	}
	var none []transport.Rail
	if rank, err := Ranks(none, "", log); rank != nil || err != nil {
		t.Errorf("no rails: %v", err)
	}
}

// TestForeignSysfs: a /sys that somebody in another network namespace mounted has an
// interface of the same name, and says nothing of ours.
func TestForeignSysfs(t *testing.T) {
	all, err := net.Interfaces()
	if err != nil || len(all) == 0 {
		t.Skip("no interfaces")
	}
	i := all[0]
	dir := t.TempDir()
	write := func(file, text string) {
		at := filepath.Join(dir, i.Name, file)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if described(i.Name, dir) {
		t.Error("it is not there, and is described")
	}
	write("ifindex", strconv.Itoa(i.Index))
	write("address", i.HardwareAddr.String())
	if !described(i.Name, dir) {
		t.Error("it is described, and that is not seen")
	}
	write("ifindex", strconv.Itoa(i.Index+40))
	if described(i.Name, dir) {
		t.Error("another index")
	}
	if !described("nothing0", dir) {
		t.Error("no interface is nothing to mistake")
	}
}
