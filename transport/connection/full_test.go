package connection

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
)

// TestWithin: a rail does not promise more than the process may open.
func TestWithin(t *testing.T) {
	for _, tc := range []struct {
		limit int
		files uint64
		want  int
	}{
		{4096, 1 << 20, 4096},
		{4096, 4096 + fileReserve, 4096},
		{4096, 4096 + fileReserve - 1, 4095},
		{4096, 1024, 1024 - fileReserve},
		{4096, 256, 128},
		{4096, 1, 1},
		{4, 256, 4},
	} {
		if got := within(tc.limit, tc.files); got != tc.want {
			t.Errorf("%d connections of %d files: %d, want %d", tc.limit, tc.files, got, tc.want)
		}
	}
}

// TestFull: who is refused hears of the limit, and of the option that raises it.
func TestFull(t *testing.T) {
	for _, tc := range []struct {
		full Full
		want string
	}{
		{Full{Limit: 9}, "9 connections have something under way, and no more are served (option maxconns raises that)"},
		{Full{Limit: 9, OneHost: true}, "9 connections from one host have something under way, and no more are served (option peerconns raises that)"},
		{Full{Limit: 9, OneHost: true, Fixed: true}, "9 connections from one host have something under way, and no more are served"},
	} {
		if got := tc.full.Error(); got != tc.want {
			t.Errorf("%+v: %s", tc.full, got)
		}
	}
}

// TestNoFiles: where the process has no files left, one that is idle makes room; other failures end
// nobody. The log says what to do, once.
func TestNoFiles(t *testing.T) {
	log := &clocktest.Log{}
	a := NewAdmission(AdmissionConfig{Rail: "tcp/lo", Max: 4, PerPeer: 4, Logger: slog.New(slog.NewTextHandler(log, nil))})
	var out []string
	come := func(name string, stand Standing) {
		if err := a.Admit(&guest{name: name, stand: stand, out: &out}, name); err != nil {
			t.Fatal(err)
		}
	}
	come("busy", Standing{Busy: true})
	come("later", Standing{Idle: time.Unix(2, 0)})
	come("first", Standing{Idle: time.Unix(1, 0)})
	a.Failed(os.NewSyscallError("accept4", syscall.ECONNABORTED))
	if len(out) > 0 {
		t.Errorf("%v are ended for nothing", out)
	}
	a.failures = Sparse{}
	for range 3 {
		a.Failed(os.NewSyscallError("accept4", syscall.EMFILE))
	}
	if got := strings.Join(out, " "); got != "first later" {
		t.Errorf("%s are ended", got)
	}
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "LimitNOFILE=") || !strings.Contains(text, "too many open files") {
		t.Errorf("the log: %s", text)
	}
	var full *Full
	come("x", Standing{Busy: true})
	come("y", Standing{Busy: true})
	come("z", Standing{Busy: true})
	if err := a.Admit(&guest{name: "w", out: &out}, "w"); !errors.As(err, &full) || full.Limit != 4 || full.OneHost {
		t.Errorf("a fifth: %v", err)
	}
}
