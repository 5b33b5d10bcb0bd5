package matrix

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kvferry/internal/config"
)

// TestTaken: a server whose port somebody else answers at is not started, by its port or by its
// URL, and nobody measures the other; its pairs say the line, the port and who is there. The
// rest goes on.
func TestTaken(t *testing.T) {
	asked := make(chan struct{}, 100)
	foreign := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	defer foreign.Close()
	_, port, _ := net.SplitHostPort(foreign.Listener.Addr().String())
	out := t.TempDir()
	ran := filepath.Join(out, "ran")
	f := file(t, fmt.Sprintf(`- {name: byport, port: %s, command: "touch %s; sleep 100", ready: {url: "{url}/"}}
- {name: byurl, url: "http://localhost:%[1]s/v1", command: "touch %[2]s; sleep 100", ready: {url: "{url}"}}
- `+server, port, ran), "- "+client)
	_, progress, err := run(t.Context(), f, out, false)
	if bad, ok := err.(*Failed); !ok || bad.Failed != 2 || bad.Pairs != 3 {
		t.Fatalf("%v\n%s", err, progress)
	}
	for name, want := range map[string]string{
		"byport": fmt.Sprintf("the server did not come up: %s:2: server byport: process %d (", f.path, os.Getpid()),
		"byurl":  fmt.Sprintf(") listens at localhost:%s already, and would be measured in its place: end it, or change the server's port or url", port),
	} {
		if p := pairOf(t, out, name, "x"); p.Status != StatusFailed || !strings.Contains(p.Error, want) {
			t.Errorf("%s: %s: %q, want %q", name, p.Status, p.Error, want)
		}
	}
	if p := pairOf(t, out, "a", "x"); p.Status != StatusDone {
		t.Errorf("the third: %s %s", p.Status, p.Error)
	}
	if _, err := os.Stat(ran); err == nil || len(asked) > 0 {
		t.Errorf("the command was started (%v), or the other asked (%d times)", err, len(asked))
	}
}

// TestTakenMeanwhile: somebody who was there before the server begins to listen at its port
// while it starts, and answers in its place.
func TestTakenMeanwhile(t *testing.T) {
	port, err := config.FreePort(DefaultHost)
	if err != nil {
		t.Fatal(err)
	}
	addr := net.JoinHostPort(DefaultHost, fmt.Sprint(port))
	others := make(chan *http.Server, 1)
	here := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		other := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go other.Serve(l)
		others <- other
	}))
	defer here.Close()
	out := t.TempDir()
	f := file(t, fmt.Sprintf(`- {name: late, port: %d, command: "{kvferry} ask %s/ && sleep 100", ready: {url: "{url}/", within: 1m}}`, port, here.URL), "- "+client)
	_, progress, err := run(t.Context(), f, out, false)
	select {
	case other := <-others:
		defer other.Close()
	default:
		t.Fatalf("nobody else listens: %v\n%s", err, progress)
	}
	want := fmt.Sprintf("server late: process %d (", os.Getpid())
	if p := pairOf(t, out, "late", "x"); p.Status != StatusFailed || !strings.Contains(p.Error, want) || !strings.Contains(p.Error, "answers at "+addr+": it is not of this server") {
		t.Errorf("%s: %q, want %q", p.Status, p.Error, want)
	}
}

// TestListening: who listens is found for both families, and at all addresses.
func TestListening(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil {
			if strings.Contains(at, "[") {
				continue // a machine without IPv6
			}
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ask := net.JoinHostPort("127.0.0.1", port)
		if at == "[::1]:0" {
			ask = net.JoinHostPort("::1", port)
		}
		if all := listeners(ask); len(all) != 1 || all[0].pid != os.Getpid() || all[0].began == 0 || len(all[0].parents) == 0 {
			t.Errorf("%s: %+v", at, all)
		}
		l.Close()
		if all := listeners(ask); len(all) != 0 {
			t.Errorf("%s, closed: %+v", at, all)
		}
	}
	if ip := kernelAddr("0100007F"); ip.String() != "127.0.0.1" {
		t.Error(ip)
	}
	if ip := kernelAddr("0000000000000000FFFF00000100007F"); ip.String() != "127.0.0.1" {
		t.Error(ip)
	}
	if ip := kernelAddr("x"); ip.IsValid() {
		t.Error(ip)
	}
}

// TestNoAnswer: a URL that takes a connection and does not answer is named, and that the time is
// up is said once.
func TestNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	url := "http://" + l.Addr().String() + "/"
	err = awaitReady(t.Context(), Ready{Within: 20 * time.Millisecond}, url, probe, nil, nil)
	if want := "it is not ready in time: 20ms: " + url + " does not answer"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
