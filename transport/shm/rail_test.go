//go:build linux

package shm

import (
	"log/slog"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/process"
	"kvferry/transport/transporttest"
)

// available skips a test where the kernel has no cross-memory attach.
func available(t testing.TB) {
	t.Helper()
	if err := process.Supported(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
}

func newRail(t testing.TB) *Rail {
	t.Helper()
	r, err := New(Config{Name: "shm/0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sharing is a rail whose tests use its own memory.
type sharing struct{ *Rail }

// Allocate implements transporttest.Allocating.
func (sharing) Allocate(size int) ([]byte, func() error, error) { return Map(size) }

func TestContract(t *testing.T) {
	available(t)
	t.Run("mapped", func(t *testing.T) {
		transporttest.TestRail(t, func(t testing.TB) transport.Rail { return sharing{newRail(t)} }, transporttest.Checked)
	})
	t.Run("attached", func(t *testing.T) {
		transporttest.TestRail(t, func(t testing.TB) transport.Rail { return newRail(t) }, transporttest.Checked)
	})
}

func TestConfigValidate(t *testing.T) {
	for _, name := range []string{"", "shm/", "cma/0"} {
		if _, err := New(Config{Name: name}); err == nil || !strings.Contains(err.Error(), "Config.Name: ") || !strings.Contains(err.Error(), "shm/0") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestRoute: rails of another machine, network namespace or user are told from those that can be
// reached, before anybody dials.
func TestRoute(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	transporttest.TestRoute(t, a, b, transport.OneSided, "@kvferry-shm/0123/0/ABC", strings.Replace(b.Addr(), b.machine, b.machine+"1", 1))
}
