package cma

import (
	"log/slog"
	"net"
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
	r, err := New(Config{Name: "cma/0"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestContract(t *testing.T) {
	available(t)
	transporttest.TestRail(t, func(t testing.TB) transport.Rail { return newRail(t) }, transporttest.Checked)
}

func TestConfigValidate(t *testing.T) {
	transporttest.TestName(t, "cma", func(name string) error { _, err := New(Config{Name: name}); return err })
}

// TestRoute: rails of another machine, another boot or another network namespace are
// told from those that can be reached, before anybody dials.
func TestRoute(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	a, b := newRail(t), newRail(t)
	transporttest.TestRoute(t, a, b, transport.Beside, "@kvferry/0123/ABC", strings.Replace(b.Addr(), b.machine, b.machine+"1", 1))
}

// TestStranger: who connects and is no rail, or says it holds what it does not, is
// turned away.
func TestStranger(t *testing.T) {
	available(t)
	transporttest.CheckLeaks(t)
	var log clocktest.Log
	r, err := New(Config{Name: "cma/0", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	hello := make([]byte, 144+24) // of package socket; its probe is at address 0
	copy(hello, "kvferry\x04")
	hello[8] = 7
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 16)
	if n, err := c.Read(answer); n != 16 || answer[8] == 0 {
		t.Errorf("answer % x, %v: want a refusal", answer[:n], err)
	}
	if n, err := c.Read(answer); n != 0 {
		t.Errorf("then % x, %v", answer[:n], err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "memory cannot be read") || !strings.Contains(log.String(), "bad address") {
		t.Errorf("log: %s", log.String())
	}
}
