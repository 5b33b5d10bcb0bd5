package socket

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// newRail is a rail over plain TCP sockets.
func newRail(t testing.TB, listen string) *Rail {
	t.Helper()
	return newRailWith(t, listen, Config{})
}

// newRailWith sets what cfg leaves open.
func newRailWith(t testing.TB, listen string, cfg Config) *Rail {
	t.Helper()
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.Listener, cfg.Addr = "tcp/lo", ln, ln.Addr().String()
	cfg.Dial = func(ctx context.Context, addr string) (Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return c.(Conn), nil
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return New(cfg)
}

func TestContract(t *testing.T) {
	transporttest.TestRail(t, func(t testing.TB) transport.Rail { return newRail(t, "127.0.0.1:0") }, transporttest.Checked)
}

// More connections than the rail serves are refused, and logged.
func TestMaxConns(t *testing.T) {
	transporttest.CheckLeaks(t)
	log := &transporttest.Log{}
	r := newRailWith(t, "127.0.0.1:0", Config{MaxConns: 1, Logger: slog.New(slog.NewTextHandler(log, nil))})
	defer r.Close()
	other := newRail(t, "127.0.0.1:0")
	defer other.Close()
	if _, err := other.Dial(t.Context(), r.Addr()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Dial(t.Context(), r.Addr()); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(log.String(), "too many") {
		t.Errorf("second connection: %v; log %q", err, log.String())
	}
}
