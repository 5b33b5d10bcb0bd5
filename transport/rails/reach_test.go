package rails

import (
	"log/slog"
	"testing"

	"kvferry/transport/process"
)

// TestReach: rails of one process's kind reach each other, and those that go from memory to memory only within
// their machine and user.
func TestReach(t *testing.T) {
	here := " of " + process.Machine()
	for spec, want := range map[string]string{"127.0.0.1:0": "tcp", "cma": "cma" + here, "shm": "shm" + here} {
		for range 2 {
			r, err := Open(spec, Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			if got := Reach(r); got != want {
				t.Errorf("%s reaches %q, want %q", spec, got, want)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
