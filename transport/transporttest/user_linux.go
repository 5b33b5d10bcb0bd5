package transporttest

import (
	"os"
	"syscall"
	"testing"
)

// nobody is a user that owns no file and has no process but those of tests.
const nobody = 65534

// NeedsRoot skips a test that has a process of another user.
func NeedsRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: not root, which a process of another user takes")
	}
}

// BeNobody has this process, in a role, go on as another user's.
func BeNobody() error {
	if err := syscall.Setgid(nobody); err != nil {
		return err
	}
	if err := syscall.Setuid(nobody); err != nil {
		return err
	}
	// Who has changed its user is no more to be looked at, even by itself; nobody's own programs are.
	if _, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 1, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}
