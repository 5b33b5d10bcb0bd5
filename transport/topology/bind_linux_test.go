package topology

import (
	"errors"
	"syscall"
	"testing"
)

// TestUnbound: where memory may not be placed, as in a container, it is an error unless the machine has one node only.
func TestUnbound(t *testing.T) {
	for _, c := range []struct {
		node  int
		errno syscall.Errno
		nodes string
		fails bool
	}{
		{0, syscall.EPERM, "0", false},
		{0, syscall.ENOSYS, "", false},
		{0, syscall.EPERM, "0-1", true},
		{0, syscall.EPERM, "0,2", true},
		{1, syscall.EPERM, "0-1", true},
		{0, syscall.EINVAL, "0", true},
		{0, syscall.EIO, "0", true},
	} {
		if err := unbound("cpu:0", c.node, c.errno, c.nodes); (err != nil) != c.fails || c.fails && c.errno == syscall.EPERM && !errors.Is(err, c.errno) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
