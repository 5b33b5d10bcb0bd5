package matrix

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTaken: a server whose port somebody else answers at is not started, by its port or by its
// URL, and nobody measures the other. The rest goes on.
func TestTaken(t *testing.T) {
	asked := make(chan struct{}, 100)
	foreign := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	defer foreign.Close()
	_, port, _ := net.SplitHostPort(foreign.Listener.Addr().String())
	out := t.TempDir()
	ran := filepath.Join(out, "ran")
	f := file(t, fmt.Sprintf(`- {name: byport, port: %s, command: "touch %s; sleep 100", ready: {url: "{url}/"}}
- {name: byurl, url: "http://127.0.0.1:%[1]s/v1", command: "touch %[2]s; sleep 100", ready: {url: "{url}"}}
- `+oneServer, port, ran), "- "+oneClient)
	_, progress, err := run(t.Context(), f, out, false)
	if err == nil || err.Error() != "2 of 3 pairs failed; their folders say why" {
		t.Fatalf("%v\n%s", err, progress)
	}
	for _, name := range []string{"byport", "byurl"} {
		if p := pairOf(t, out, name, "x"); !strings.Contains(p.Error, "somebody listens at 127.0.0.1:"+port+" already: end it") {
			t.Errorf("%s: %s: %q", name, p.Status, p.Error)
		}
	}
	if p := pairOf(t, out, "a", "x"); p.Status != StatusDone {
		t.Errorf("the third: %s %s", p.Status, p.Error)
	}
	if _, err := os.Stat(ran); err == nil || len(asked) > 0 {
		t.Errorf("the command was started (%v), or the other asked (%d times)", err, len(asked))
	}
}

// TestNothingLeft: what a client and a server have started ends with them. A server that ignores its
// signal is killed, and pair.json has that; one that takes its time is not.
func TestNothingLeft(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only on Linux is what a command leaves of its group ended")
	}
	out, pids := t.TempDir(), filepath.Join(t.TempDir(), "pids")
	f := file(t, fmt.Sprintf(`- {name: deaf, command: "trap '' TERM; sleep 1000 & echo $! >> %[1]s; echo up; while :; do sleep 1; done", ready: {line: up}, stop: {within: 50ms}}
- {name: slow, command: "sh -c 'trap \"sleep 0.3; echo saved; exit\" TERM; echo up; while :; do sleep 0.02; done' & wait", ready: {line: up}}
- {name: never, command: "echo $$ >> %[1]s; exec sleep 1000", ready: {line: up, within: 100ms}}`, pids),
		fmt.Sprintf(`- {name: x, command: "sleep 1000 & echo $! >> %s"}`, pids))
	if _, progress, err := run(t.Context(), f, out, false); err == nil || !strings.HasPrefix(err.Error(), "1 of 3 pairs failed") {
		t.Fatal(err, progress)
	}
	text, err := os.ReadFile(pids)
	if all := strings.Fields(string(text)); err != nil || len(all) != 4 {
		t.Fatalf("%v: started %q", err, all)
	}
	for _, one := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(one)
		eventually(t, "the end of "+one, func() bool { return syscall.Kill(pid, 0) != nil })
	}
	if p := pairOf(t, out, "deaf", "x"); p.ServerStop != "did not end within 50ms and was killed" {
		t.Errorf("%q", p.ServerStop)
	}
	p := pairOf(t, out, "slow", "x")
	if log, err := os.ReadFile(filepath.Join(out, "slow", "x", serverFile)); err != nil || !strings.Contains(string(log), "saved") || p.ServerStop != "" {
		t.Errorf("%v: %q, %q", err, log, p.ServerStop)
	}
}

// TestNoAnswer: a URL that takes a connection and does not answer is named. The last answer that
// came is told, if there was any.
func TestNoAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := file(t, fmt.Sprintf(`- {name: a, url: "http://%s", ready: {url: "{url}/health", within: 20ms}}`, l.Addr()), "- "+oneClient)
	out := t.TempDir()
	began := time.Now()
	if _, progress, err := run(t.Context(), f, out, false); err == nil || time.Since(began) > answerWithin {
		t.Fatalf("%v\n%s", err, progress)
	}
	if p := pairOf(t, out, "a", "x"); !strings.Contains(p.Error, fmt.Sprintf("it is not ready within 20ms: Get \"http://%s/health\": ", l.Addr())) {
		t.Error(p.Error)
	}

	block, asked := make(chan struct{}), false
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked {
			<-block
		}
		asked = true
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer busy.Close()
	defer close(block)
	f = file(t, fmt.Sprintf(`- {name: a, url: %q, ready: {url: "{url}", within: 300ms}}`, busy.URL), "- "+oneClient)
	_, _, err = run(t.Context(), f, out, true)
	if p := pairOf(t, out, "a", "x"); err == nil || !strings.HasSuffix(p.Error, "answers 503 Service Unavailable") {
		t.Error(err, p.Error)
	}
}
