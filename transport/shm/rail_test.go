//go:build linux

package shm

import (
	"log/slog"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
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
	r, _ := loggedRail(t)
	return r
}

// loggedRail is a rail, and what it logs.
func loggedRail(t testing.TB) (*Rail, *clocktest.Log) {
	t.Helper()
	log := new(clocktest.Log)
	r, err := New(Config{Name: "shm/0", Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return r, log
}

// lend is a MiB of shared memory, and a key that opens all of it, until the test ends.
func lend(t testing.TB, r *Rail) ([]byte, transport.Key) {
	t.Helper()
	mem, release, err := Map(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = release() })
	key, err := r.Register(mem, transport.Whole(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return mem, key
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
	transporttest.TestName(t, "shm", func(name string) error { _, err := New(Config{Name: name}); return err })
}

// TestRoute: rails of another machine, network namespace or user are told from those that can be
// reached, before anybody dials.
func TestRoute(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	transporttest.TestRoute(t, a, b, transport.OneSided, "@kvferry-shm/0123/0/ABC", strings.Replace(b.Addr(), b.machine, b.machine+"1", 1))
}
