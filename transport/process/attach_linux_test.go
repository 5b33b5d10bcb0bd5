package process

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestYama(t *testing.T) {
	for _, c := range []struct {
		scope   string
		capable bool
		ok      bool
	}{{"0", false, true}, {"1", false, true}, {"2", true, true}, {"2", false, false}, {"3", true, false}} {
		if err := yama(c.scope, c.capable); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("scope %s, capable %t: %v", c.scope, c.capable, err)
		}
	}
	if err := explain(7, "process_vm_readv", unix.EPERM); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "process 7") || !strings.Contains(err.Error(), "ptrace_scope") {
		t.Error(err)
	}
}
