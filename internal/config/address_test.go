package config_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"kvferry/internal/config"
)

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:8000": "127.0.0.1", "[::1]:8000": "::1", ":0": "", "node-1.example:65535": "node-1.example", "[fe80::1%eth0]:1": "fe80::1%eth0",
	} {
		if host, _, err := config.Address(text); err != nil || host != want {
			t.Errorf("%s: %q, %v", text, host, err)
		}
	}
	for text, want := range map[string]string{
		"": "none given", "nowhere": "write host:port", "::1": "stands in brackets", "::1:8000": "stands in brackets", "[::1": "write host:port",
		"1.2.3.4:": "use a number up to", "1.2.3.4:http": `the port is "http"`, "1.2.3.4:65536": "up to 65535", "1.2.3.4:-1": "use a number up to", "http://1.2.3.4": "it is no URL",
		"http://1.2.3.4:80": "it is no URL: write host:port", "a b:1": "no host", "10.0.0.1/24:1": "no host",
	} {
		_, _, err := config.Address(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{":9100", "0.0.0.0:9100", "[::]:9100"} {
		if err := config.PeerAddress(text); err == nil || !strings.Contains(err.Error(), "names no host") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, want := range map[string]string{":9100": "names no host", "10.0.0.1:0": "names no port", "10.0.0.1": "host:port"} {
		if err := config.ServerAddress(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"10.0.0.1:9000", "localhost:9000"} {
		if err := errors.Join(config.PeerAddress(text), config.ServerAddress(text)); err != nil {
			t.Error(err)
		}
	}
}

// TestBaseURLHidesUsers: what is no URL is shown without what may be a password.
func TestBaseURLHidesUsers(t *testing.T) {
	for _, text := range []string{"http://user:se/cret@host:80", "http://user:se cret@host", "user:se/cret@host", "http://user:se?cret@host", "http://user:%zzsecret@host"} {
		for _, read := range []func(string) (string, error){config.BaseURL, config.PublicURL} {
			if base, err := read(text); err == nil || strings.Contains(err.Error(), "cret") || !strings.Contains(err.Error(), "host") {
				t.Errorf("%q: %q, %v", text, base, err)
			}
		}
	}
}

// TestBaseURLPorts: a port that cannot be is refused before anybody waits for it.
func TestBaseURLPorts(t *testing.T) {
	for text, ok := range map[string]bool{"http://h:65535": true, "h:1": true, "http://h": true, "http://h:65536": false, "h:99999": false, "https://h:0": false} {
		if _, err := config.BaseURL(text); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "use a number from 1 to 65535") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestListen: what the system says is said in other words, and the error is a fault of
// the field that unwraps to the system's.
func TestListen(t *testing.T) {
	l, err := config.Listen("HTTPAddr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		addr, want string
		cause      error
	}{
		{l.Addr().String(), "another process listens there", syscall.EADDRINUSE},
		{"192.0.2.1:0", "no interface of this machine", syscall.EADDRNOTAVAIL},
	} {
		_, err := config.Listen("HTTPAddr", c.addr)
		var fault *config.Fault
		if !errors.As(err, &fault) || fault.Field != "HTTPAddr" || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.addr) || !errors.Is(err, c.cause) {
			t.Errorf("%s: %v", c.addr, err)
		}
	}
}
