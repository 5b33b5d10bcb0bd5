package tcp

import (
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/socket"
)

// pair is a connection over loopback, both ends; opened hears of the first.
func pair(t *testing.T, opened func(socket.Conn)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	a, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	opened(a.(*net.TCPConn))
}

// algorithms are the congestion controls that the kernel has, and those that every user may set.
func algorithms(t *testing.T) (available, allowed []string) {
	t.Helper()
	read := func(name string) []string {
		text, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(string(text))
	}
	return read("tcp_available_congestion_control"), read("tcp_allowed_congestion_control")
}

// TestUnprivileged: where the kernel does not let the user have an algorithm, the connection keeps
// its own, is not asked about it again, and the log says so once.
func TestUnprivileged(t *testing.T) {
	available, allowed := algorithms(t)
	refused := ""
	for _, a := range available {
		if !slices.Contains(allowed, a) {
			refused = a
		}
	}
	if refused == "" {
		refused = "no-such-algorithm" // all may set all: at least what it lacks
	}
	logs := &clocktest.Log{}
	r := &Rail{cfg: Config{Name: "tcp/lo", Logger: slog.New(slog.NewTextHandler(logs, nil))}, began: time.Now()}
	r.tuner = newTuner(r)
	for range 2 {
		pair(t, r.tuner.opened)
	}
	r.tuner.close() // what is decided here is all that is
	before, _ := r.Congestion()
	if len(before) != 1 {
		t.Fatalf("two connections of one kind are %v", before)
	}
	all := make(map[*tuned]string)
	for u, a := range r.tuner.conns {
		all[u] = a
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // this thread is nobody's from here on, and ends with the goroutine
		if os.Geteuid() == 0 {
			const nobody = 65534
			if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
				t.Error(e)
				return
			}
		}
		for u, a := range all {
			r.tuner.apply(u, a, decision{Congestion: refused, Why: "for the test"})
		}
	}()
	<-done
	after, changes := r.Congestion()
	if changes != 0 || len(after) != 1 || after[refused] > 0 {
		t.Errorf("%v became %v, %d changes", before, after, changes)
	}
	for u := range all {
		if i, err := look(u.raw); err != nil || i.Congestion == refused {
			t.Errorf("%+v, %v", i, err)
		}
		if !u.tuning.congestionFixed {
			t.Error("it will be tried again")
		}
	}
	if n := strings.Count(logs.String(), "level=WARN"); n != 1 || !strings.Contains(logs.String(), "tcp_allowed_congestion_control") || !strings.Contains(logs.String(), "algorithm="+refused) {
		t.Errorf("%d warnings: %s", n, logs)
	}
}

// TestCongestion: what is decided is done to the live connection, counted and logged.
func TestCongestion(t *testing.T) {
	_, allowed := algorithms(t)
	logs := &clocktest.Log{}
	r := &Rail{cfg: Config{Name: "tcp/lo", Logger: slog.New(slog.NewTextHandler(logs, nil))}, began: time.Now()}
	r.tuner = newTuner(r)
	pair(t, r.tuner.opened)
	r.tuner.close() // what is decided here is all that is
	for u, from := range r.tuner.conns {
		to := allowed[0]
		if to == from {
			to = allowed[len(allowed)-1]
		}
		r.tuner.apply(u, from, decision{Congestion: to, Why: "for the test", SendBuffer: 3 << 20, RecvGrow: true})
		i, err := look(u.raw)
		if conns, changes := r.Congestion(); err != nil || i.Congestion != to || conns[to] != 1 || len(conns) != 1 || changes != 1 {
			t.Errorf("%s, want %s; %v, %d changes, %v", i.Congestion, to, conns, changes, err)
		}
		if i.RecvBuffer < i.RecvMost/2 {
			t.Errorf("a receive buffer of %d bytes, the kernel may grow it to %d", i.RecvBuffer, i.RecvMost)
		}
	}
	if log := logs.String(); !strings.Contains(log, "congestion control changed") || !strings.Contains(log, "rail=tcp/lo") || !strings.Contains(log, `why="for the test"`) {
		t.Error(log)
	}
}

// TestLeastRoundTrip: before there was one the kernel says the largest number, which is no time.
func TestLeastRoundTrip(t *testing.T) {
	for us, want := range map[uint32]time.Duration{^uint32(0): 0, 40: 40 * time.Microsecond, 100_000: 100 * ms} {
		if got := leastRTT(us); got != want {
			t.Errorf("%d: %v, want %v", us, got, want)
		}
	}
}

// TestPoke: a peer shows that it can be reached, by what its kernel acknowledges.
func TestPoke(t *testing.T) {
	a, b := newRail(t, "127.0.0.1:0"), newRail(t, "127.0.0.1:0")
	defer a.Close()
	defer b.Close()
	ep, err := a.Dial(t.Context(), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	g := ep.(transport.Gauge)
	for range 3 {
		before := g.Gauge().Moved
		g.Poke()
		clocktest.Until(t, "the peer's kernel to answer", func() bool { return g.Gauge().Moved > before+10_000 })
	}
	if f := g.Gauge(); f.RoundTrip <= 0 || f.Window <= 0 {
		t.Errorf("%+v", f)
	}
}
