package rails_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/shm"
)

// protect changes the second half of memory, and gives it back as it was at the end.
func protect(t *testing.T, mem []byte, protection int) {
	t.Helper()
	if err := unix.Mprotect(mem[len(mem)/2:], protection); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Mprotect(mem[len(mem)/2:], unix.PROT_READ|unix.PROT_WRITE) })
}

// TestMemoryTakenAway: where the owner of registered memory unmaps or protects it before it closes the segment, on either
// side, the transfers that touch it end with an error that names the segment. Others go on, and the process lives.
func TestMemoryTakenAway(t *testing.T) {
	const size = 1 << 20
	for _, spec := range all {
		for _, file := range []bool{false, true} { // memory that peers of shm map, too
			if file && spec != "shm" {
				continue
			}
			for _, side := range []string{"here", "there"} {
				for _, op := range []transport.Op{transport.Write, transport.Read} {
					for _, bytes := range []int{64, 256 << 10} {
						if file && side == "there" {
							continue // what the peer has mapped stays
						}
						t.Run(fmt.Sprintf("%s/file %v/%s/%v/%d", spec, file, side, op, bytes), func(t *testing.T) {
							takeAway(t, spec, file, side, op, bytes, size)
						})
					}
				}
			}
		}
	}
}

func takeAway(t *testing.T, spec string, file bool, side string, op transport.Op, n, size int) {
	here, err := openEngine([]string{spec})
	if err != nil {
		t.Fatal(err)
	}
	there, err := openEngine([]string{spec})
	if err != nil {
		t.Fatal(err)
	}
	segment := func(e *transport.Engine, name string, allocate transport.Allocator) *transport.Segment {
		mem, release, err := allocate(size)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = release() })
		s, err := e.Register(name, mem, "cpu:0")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	theirMemory := transport.Allocator(transport.MapMemory)
	if file {
		theirMemory = shm.Map
	}
	local, other, theirs, theirOther := segment(here, "local", transport.MapMemory), segment(here, "other", transport.MapMemory), segment(there, "theirs", theirMemory), segment(there, "their other", theirMemory)
	t.Cleanup(func() {
		if err := errors.Join(here.Close(), there.Close()); err != nil {
			t.Error(err)
		}
	})
	target, err := here.Open(theirs.Info())
	if err != nil {
		t.Fatal(err)
	}
	otherTarget, err := here.Open(theirOther.Info())
	if err != nil {
		t.Fatal(err)
	}
	submit := func(s *transport.Segment, to *transport.Target, at int) *transport.Batch {
		return here.Submit(to, []transport.Request{{Op: op, Local: s.Bytes()[at : at+n], Offset: int64(at)}}, transport.BatchOptions{Timeout: 20 * time.Second})
	}
	bad, name := local, "local"
	if side == "there" {
		bad, name = theirs, "theirs"
	}
	for _, protection := range []int{unix.PROT_NONE, unix.PROT_READ} {
		if protection == unix.PROT_READ && (op == transport.Write) != (side == "there") {
			continue // who is read from may have memory that is read-only
		}
		protect(t, bad.Bytes(), protection)
		good, lost := submit(other, otherTarget, 0), submit(local, target, size/2)
		after := submit(other, otherTarget, n)
		for _, b := range []*transport.Batch{good, lost, after} {
			<-b.Done()
		}
		if err := lost.Err(); !errors.Is(err, transport.ErrMemory) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("protection %d: %v", protection, err)
		}
		if good.Err() != nil || after.Err() != nil {
			t.Errorf("protection %d: others: %v, %v", protection, good.Err(), after.Err())
		}
		if err := unix.Mprotect(bad.Bytes(), unix.PROT_READ|unix.PROT_WRITE); err != nil {
			t.Fatal(err)
		}
	}
	for i := range other.Bytes() { // and bytes still arrive
		other.Bytes()[i] = byte(i * 7)
	}
	b := submit(other, otherTarget, 4096)
	if <-b.Done(); b.Err() != nil || !bytes.Equal(other.Bytes()[4096:4096+n], theirOther.Bytes()[4096:4096+n]) {
		t.Errorf("afterwards: %v", b.Err())
	}
}

// TestRegisterChecks: memory must be there as its segment may be used.
func TestRegisterChecks(t *testing.T) {
	e, err := openEngine([]string{"127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	mem, release, err := transport.MapMemory(4 * os.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	protect(t, mem, unix.PROT_READ)
	if _, err := e.Register("kv", mem, "cpu:0"); !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), "register kv") {
		t.Errorf("read-only memory: %v", err)
	}
	private, err := e.RegisterLocal("weights", mem, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	whole := []transport.Range{{Offset: 0, Length: int64(len(mem))}}
	if _, err := private.Window("to write", transport.Write, whole); !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a window to write to: %v", err)
	}
	w, err := private.Window("to read", transport.Read, whole)
	if err != nil {
		t.Fatal(err)
	}
	to, err := e.Open(w.Info())
	if err != nil {
		t.Fatal(err)
	}
	b := e.Submit(to, []transport.Request{{Op: transport.Read, Local: mem[len(mem)-8:]}}, transport.BatchOptions{})
	if <-b.Done(); !errors.Is(b.Err(), transport.ErrMemory) || !strings.Contains(b.Err().Error(), `"weights"`) {
		t.Errorf("a READ into it: %v", b.Err())
	}
	protect(t, mem, unix.PROT_NONE)
	for name, register := range map[string]func(string, []byte, string) (*transport.Segment, error){"for all": e.Register, "private": e.RegisterLocal} {
		if _, err := register("kv", mem, "cpu:0"); !errors.Is(err, transport.ErrMemory) {
			t.Errorf("memory that must not be read, %s: %v", name, err)
		}
	}
}
