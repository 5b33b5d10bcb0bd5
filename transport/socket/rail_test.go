package socket

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// patience bounds every wait for something that must happen. It is no measure of
// speed: the machine may be busy.
const patience = time.Minute

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

func newEngine(t testing.TB, r transport.Rail) *transport.Engine {
	t.Helper()
	e, err := transport.New(transport.Config{Rails: []transport.Rail{r}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}
