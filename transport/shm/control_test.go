//go:build linux

package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestControl: both ends see one page, a copy begins only under an open slot of an open connection, and
// one that may not begin is not announced.
func TestControl(t *testing.T) {
	theirs, err := newControl()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.close()
	fd, err := unix.Dup(theirs.f.fd)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := openControl(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.close()
	begin := func(slot uint32, generation uint64, read, wantOpen, wantCut bool, want uint64) {
		t.Helper()
		open, cut := ours.begin(slot, generation, read)
		if open != wantOpen || cut != wantCut {
			t.Errorf("slot %d of generation %d: open %t, cut %t", slot, generation, open, cut)
		}
		if got, _ := theirs.busy(); got != want {
			t.Errorf("slot %d of generation %d: %d is announced, want %d", slot, generation, got, want)
		}
		ours.end()
	}
	begin(7, 1, false, false, false, 0)
	theirs.set(7, 1)
	begin(7, 1, false, true, false, 16)
	begin(7, 1, true, true, false, 17)
	begin(7, 2, false, false, false, 0)
	theirs.set(maxSlots-1, 3)
	begin(maxSlots-1, 3, false, true, false, 2*maxSlots)
	theirs.set(7, 0)
	begin(7, 1, false, false, false, 0)
	theirs.set(7, 4) // somebody else's
	begin(7, 1, false, false, false, 0)
	theirs.cut()
	begin(7, 4, false, false, true, 0)
	if _, count := theirs.busy(); count != 3 {
		t.Errorf("%d copies were begun, want 3", count)
	}
	short, err := newFile("short", 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer short.release()
	if fd, err = unix.Dup(short.fd); err != nil {
		t.Fatal(err)
	}
	if _, err := openControl(fd); err == nil {
		t.Error("a page that is too short is opened")
	}
}
