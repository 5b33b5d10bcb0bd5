package config_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"kvferry/internal/config"
)

// TestFreePort: nobody is given it who asks for any port; of a host that is not this one there is none.
func TestFreePort(t *testing.T) {
	for range 20 {
		port, err := config.FreePort("127.0.0.1")
		if err != nil || port < 20000 || port >= 32768 {
			t.Fatalf("%d, %v", port, err)
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	if port, err := config.FreePort("192.0.2.1"); err == nil || !strings.Contains(err.Error(), "no free port at 192.0.2.1") {
		t.Errorf("%d, %v", port, err)
	}
}
