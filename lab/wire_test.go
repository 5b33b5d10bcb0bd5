package lab

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func frame(to byte, text string) []byte {
	f := append([]byte{0, 0, 0, 0, 0, to}, make([]byte, 8)...)
	f = append(f, text...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(f))), f...)
}

// TestHub: a frame goes to whom it is for, or to all others.
func TestHub(t *testing.T) {
	var ports, ends []net.Conn
	for range 3 {
		a, b := net.Pipe()
		ports, ends = append(ports, a), append(ends, b)
	}
	var hub sync.WaitGroup
	hub.Go(func() {
		runHub(ports, func(mac [6]byte) int {
			if to := int(mac[5]); to < 3 {
				return to
			}
			return -1
		})
	})
	send := func(port int, f []byte) {
		if _, err := ends[port].Write(f); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(port int, f []byte) {
		t.Helper()
		got, err := readFrame(ends[port])
		if err != nil || !bytes.Equal(got, f) {
			t.Errorf("port %d got %q, %v, want %q", port, got, err, f)
		}
	}
	send(0, frame(2, "for 2"))
	expect(2, frame(2, "for 2"))
	send(1, frame(255, "for all"))
	expect(0, frame(255, "for all"))
	expect(2, frame(255, "for all")) // and nothing of the first one on port 1
	send(2, frame(1, "for 1"))
	expect(1, frame(1, "for 1"))
	closeAll(ends)
	hub.Wait()
}

func TestReadFrame(t *testing.T) {
	for _, head := range []uint32{0, 13, maxFrame + 1, 1 << 31} {
		in := bytes.NewReader(binary.BigEndian.AppendUint32(nil, head))
		if _, err := readFrame(in); err != io.ErrUnexpectedEOF {
			t.Errorf("length %d: %v", head, err)
		}
	}
}

func TestMonitor(t *testing.T) {
	ours, qemu := net.Pipe()
	defer ours.Close()
	var said []string
	var all sync.WaitGroup
	all.Go(func() {
		defer qemu.Close()
		in := json.NewDecoder(qemu)
		for _, answer := range []string{
			`{"return": {}}`,
			`{"event": "NIC_RX_FILTER_CHANGED", "data": {}}` + "\r\n" + `{"return": {}}`,
			`{"error": {"class": "GenericError", "desc": "no such device"}}`,
		} {
			if len(said) == 0 {
				_, _ = io.WriteString(qemu, `{"QMP": {"version": {}, "capabilities": []}}`+"\r\n")
			}
			var request json.RawMessage
			if in.Decode(&request) != nil {
				return
			}
			said = append(said, string(request))
			_, _ = io.WriteString(qemu, answer+"\r\n")
		}
	})
	m, err := openMonitor(ours)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.setLink(1, false); err != nil {
		t.Error(err)
	}
	if err := m.setLink(9, true); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Error(err)
	}
	all.Wait()
	if want := `{"arguments":{"name":"n1","up":false},"execute":"set_link"}`; len(said) != 3 || said[1] != want {
		t.Errorf("%q, want the second to be %s", said, want)
	}
	if err := m.setLink(0, true); err == nil {
		t.Error("QEMU is gone")
	}
}

// TestExtract: files come out, and none outside of the folder.
func TestExtract(t *testing.T) {
	pack := func(names ...string) io.Reader {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range names {
			if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: 2}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, "hi"); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &b
	}
	dir := t.TempDir()
	folder := filepath.Join(dir, "host1")
	if err := extract(pack("./a", "./b/c"), folder); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b/c"} {
		if text, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(text) != "hi" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if err := extract(pack("../evil"), folder); err == nil {
		t.Error("../evil is outside")
	}
	if _, err := os.Stat(filepath.Join(dir, "evil")); err == nil {
		t.Error("../evil was written")
	}
	if err := extract(strings.NewReader("half an archive"), folder); err == nil {
		t.Error("half an archive is none")
	}
}
