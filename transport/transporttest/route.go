package transporttest

import (
	"errors"
	"strings"
	"testing"

	"kvferry/transport"
)

// TestRoute tests that a rail from memory to memory knows its neighbour, which it reaches so, from rails
// elsewhere before anybody dials, and that nobody answers where none is. It closes both, and leaves what they were opened with to CheckLeaks of the caller.
func TestRoute(t *testing.T, a, b transport.Rail, reach transport.Reach, elsewhere ...string) {
	defer a.Close()
	router := a.(transport.Router)
	if got, _ := router.Route(b.Addr()); got != reach {
		t.Errorf("its neighbour %s: %v", b.Addr(), got)
	}
	for _, addr := range append(elsewhere, "127.0.0.1:7000", "") {
		if got, why := router.Route(addr); got != transport.NoRoute || why == "" {
			t.Errorf("%q: %v, %q", addr, got, why)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{b.Addr(), "127.0.0.1:1", "/etc/passwd", ""} {
		if _, err := a.Dial(t.Context(), addr); !errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("dial %q: %v", addr, err)
		}
	}
}

// TestName tests that a rail from memory to memory is named by its kind and a number, and what is said of other names: open
// opens one by a name.
func TestName(t *testing.T, kind string, open func(name string) error) {
	for _, name := range []string{"", kind + "/", "tcp/0"} {
		if err := open(name); err == nil || !strings.Contains(err.Error(), "Config.Name: ") || !strings.Contains(err.Error(), kind+"/0") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
