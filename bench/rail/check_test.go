package rail

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/internal/config"
)

// loose are limits that a machine meets however busy it is.
var loose = Limits{Line: 0, Lost: 1}

func quickCheck(server string, rails ...string) CheckConfig {
	return CheckConfig{Config: Config{Rails: rails, Server: server, Segment: 4 << 20, Duration: 50 * time.Millisecond, Timeout: patience}, Probes: 40, Limits: loose}
}

// TestCheckSeesAll: two rails between two ends, alone and together, and what was seen in the file.
func TestCheckSeesAll(t *testing.T) {
	t.Parallel()
	addr, _ := startServer(t, ServerConfig{Rails: []string{"127.0.0.1:0", "127.0.0.1:0"}})
	cfg := quickCheck(addr, "127.0.0.1:0", "127.0.0.1:0")
	var out, progress bytes.Buffer
	cfg.Out, cfg.Stdout, cfg.Progress = t.TempDir(), &out, &progress
	r, err := Check(t.Context(), cfg)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(r.Rails) != 2 || r.All == nil || r.All.Write.Checked == 0 || r.Clock == nil || r.Clock.RoundTrip <= 0 || r.Verdicts[1] == Fail {
		t.Errorf("%+v", r)
	}
	for i := range r.Rails {
		x := &r.Rails[i]
		if x.Rates.Write.GBps <= 0 || x.Rates.Read.Checked == 0 || x.Rates.Error != "" || x.Full.Back == 0 || x.Full.Wrong > 0 || x.Full.Size != min(x.Here.MTU, mostPacket) || x.There.NIC == "" {
			t.Errorf("rail %d: %+v", i, x)
		}
	}
	text, err := os.ReadFile(filepath.Join(cfg.Out, CheckFile))
	var back Report
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Rails) != 2 {
		t.Errorf("%v: %s", err, text)
	}
	for _, want := range []string{"127.0.0.1:0", "all", "clock: ", "results: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestOneMachine: without a peer the other end is a child process, and nothing is probed.
func TestOneMachine(t *testing.T) {
	t.Parallel()
	cfg := quickCheck("", "127.0.0.1:0")
	r, err := Check(t.Context(), cfg)
	if err != nil || r.Clock != nil || r.Rails[0].Full.Sent != 0 || r.Rails[0].Rates.Write.Checked == 0 || r.All != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// narrow relays one connection after another to an address, 8 KiB each millisecond at the most and
// way, until the test ends.
func narrow(t *testing.T, to string) (at string) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	pour := func(dst, src net.Conn) {
		defer dst.Close()
		defer src.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for buf := make([]byte, 8<<10); ; <-tick.C {
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			a, err := lis.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				return
			}
			go pour(a, b)
			go pour(b, a)
		}
	}()
	return lis.Addr().String()
}

// TestSlowLink: what is in buffers when the measured time begins and ends does not make a link
// faster than it is, in either direction.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	port, err := config.FreePort("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	rail := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	at := narrow(t, rail)
	addr, _ := startServer(t, ServerConfig{Rails: []string{rail + "?advertise=" + at}})
	cfg := quickCheck(addr, "127.0.0.1:0")
	cfg.Duration = 200 * time.Millisecond
	r, err := Check(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, rate := range []Rate{r.Rails[0].Rates.Write, r.Rails[0].Rates.Read} {
		if rate.GBps <= 0 || rate.GBps > 1.05*8.192e-3 || rate.Checked == 0 || rate.Bad > 0 {
			t.Errorf("%+v of a link of 0.0082 GB/s", rate)
		}
	}
}

// TestRailFails: a rail that nobody can reach fails, and the other does not: each is measured
// against the one at its place.
func TestRailFails(t *testing.T) {
	t.Parallel()
	addr, _ := startServer(t, ServerConfig{Rails: []string{"127.0.0.1:0", "127.0.0.1:0?advertise=127.0.0.1:1"}})
	cfg := quickCheck(addr, "127.0.0.1:0", "127.0.0.1:0")
	cfg.Timeout = 10 * time.Second // what a refused rail takes, and no batch of the other one
	r, err := Check(t.Context(), cfg)
	if !errors.Is(err, ErrUnfit) || r.Rails[0].Rates.Error != "" || !strings.Contains(r.Rails[1].Rates.Error, "refused") {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestCheckInterrupted: a check that is stopped says that it has nothing to say, whatever it was at.
func TestCheckInterrupted(t *testing.T) {
	t.Parallel()
	addr, _ := startServer(t, ServerConfig{Rails: []string{"127.0.0.1:0"}})
	for _, at := range []string{"", "probing", "moving bytes"} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cfg := quickCheck(addr, "127.0.0.1:0")
		cfg.Duration, cfg.Progress = time.Hour, stopAt{at, cancel}
		if at == "" {
			cancel()
		}
		if r, err := Check(ctx, cfg); r != nil || !errors.Is(err, ErrInterrupted) || !errors.Is(err, context.Canceled) {
			t.Errorf("at %q: %v", at, err)
		}
	}
}

// stopAt stops a run when it says that it has come to something.
type stopAt struct {
	what string
	stop func()
}

func (s stopAt) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), s.what) {
		s.stop()
	}
	return len(b), nil
}

// TestPeerIsNone: who answers something else, or nothing, is named.
func TestPeerIsNone(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := lis.Addr().String()
	lis.Close()
	addr, _ := startServer(t, ServerConfig{Rails: []string{"127.0.0.1:0"}})
	for _, c := range []struct {
		peer  string
		rails []string
		want  string
	}{
		{strings.TrimPrefix(web.URL, "http://"), []string{"127.0.0.1:0"}, "is kvferry rail check --listen running there"},
		{nobody, []string{"127.0.0.1:0"}, "start one there with kvferry rail check --listen"},
		{addr, []string{"127.0.0.1:0", "127.0.0.1:0"}, "the other end has 1 rails and this one 2"},
	} {
		if _, err := Check(t.Context(), quickCheck(c.peer, c.rails...)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestProbe: every probe comes back over loopback, and none where the echo does not know it, or it
// is larger than a frame.
func TestProbe(t *testing.T) {
	e, err := serveEcho("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	p := probe(t.Context(), "127.0.0.1", e.echo, 1500, 100)
	if p.Sent != 100 || p.Back != 100 || p.Wrong != 0 || p.Error != "" {
		t.Errorf("%+v", p)
	}
	// As large as a datagram may be: a socket's buffer holds two of them.
	if p := probe(t.Context(), "127.0.0.1", e.echo, mostPacket, 100); p.Back != 100 || p.Error != "" {
		t.Errorf("large ones: %+v", p)
	}
	stranger := e.echo
	stranger.Token = make([]byte, tokenBytes)
	if p := probe(t.Context(), "127.0.0.1", stranger, 1500, 3); p.Sent != 3 || p.Back != 0 {
		t.Errorf("a stranger: %+v", p)
	}
	if p := probe(t.Context(), "127.0.0.1", e.echo, 40, 3); p.Error == "" || p.Sent != 0 {
		t.Errorf("no room for a probe: %+v", p)
	}
	if runtime.GOOS == "linux" {
		if lo, err := net.InterfaceByName("lo"); err == nil && lo.MTU < mostProbe {
			if p := probe(t.Context(), "127.0.0.1", e.echo, lo.MTU+100, 3); p.Back != 0 || !strings.Contains(p.Error, "too long") {
				t.Errorf("larger than a frame: %+v", p)
			}
		}
	}
}

// TestProbeWrong: a probe that comes back with another byte is told from a right one, and one that
// comes twice is counted once.
func TestProbeWrong(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		buf := make([]byte, 2000)
		for i := 0; ; i++ {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if i == 1 {
				buf[n-1] ^= 1
			}
			_, _ = conn.WriteTo(buf[:n], from)
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
	if p := probe(t.Context(), "127.0.0.1", echo{Addr: conn.LocalAddr().String(), Token: make([]byte, tokenBytes)}, 600, 5); p.Back != 5 || p.Wrong != 1 {
		t.Errorf("%+v", p)
	}
}

// TestFacts: what the kernel's files say, and what is not there is unknown.
func TestFacts(t *testing.T) {
	dir := t.TempDir()
	lo := "lo"
	if i, err := net.InterfaceByIndex(1); err == nil {
		lo = i.Name
	}
	for name, text := range map[string]string{
		"sys/class/net/" + lo + "/mtu": "9000\n", "sys/class/net/" + lo + "/carrier": "0\n", "sys/class/net/" + lo + "/carrier_changes": "7\n",
		"proc/sys/net/ipv4/tcp_congestion_control": "bbr\n", "proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic bbr\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
		"proc/meminfo": "MemFree: 1 kB\nHugePages_Free:       3\nHugepagesize:       2048 kB\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := root(dir).facts("127.0.0.1:0", "tcp/0", "127.0.0.1:4000", "")
	if f.NIC != lo || f.MTU != 9000 || !f.NoCarrier || f.Changes != 7 || f.Congestion != "bbr" || !f.BBR || f.Kind != "tcp" {
		t.Errorf("%+v", f)
	}
	if h := root(dir).host(); h.HugePages != "madvise" || h.HugeFree != 6<<20 {
		t.Errorf("%+v", h)
	}
	if f := root(t.TempDir()).facts("cma", "cma/0", "@kvferry/x", ""); f.NIC != "" || f.MTU != 0 || f.NoCarrier || f.Kind != "cma" {
		t.Errorf("%+v", f)
	}
}

// TestProbeFarAway: probes that all take long are not lost, however near the first rail was, and one
// that does not come back at all is.
func TestProbeFarAway(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		for i := 0; ; i++ {
			buf := make([]byte, 2000)
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if i != 7 {
				time.AfterFunc(2*leastPatience, func() { _, _ = conn.WriteTo(buf[:n], from) })
			}
		}
	}()
	if p := probe(t.Context(), "127.0.0.1", echo{Addr: conn.LocalAddr().String(), Token: make([]byte, tokenBytes)}, 600, 50); p.Sent != 50 || p.Back != 49 {
		t.Errorf("%+v", p)
	}
}

// TestProbeLate: the last probe is not lost, however near the others were.
func TestProbeLate(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const n = 5
	go func() {
		for i := 1; ; i++ {
			buf := make([]byte, 2000)
			got, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			late := time.Duration(0)
			if i%n == 0 {
				late = 2 * leastPatience
			}
			time.AfterFunc(late, func() { _, _ = conn.WriteTo(buf[:got], from) })
		}
	}()
	var p Probes
	for range 10 { // a busy machine may lose some
		if p = probe(t.Context(), "127.0.0.1", echo{Addr: conn.LocalAddr().String(), Token: make([]byte, tokenBytes)}, 600, n); p.Sent == n && p.Back == n {
			return
		}
	}
	t.Errorf("%+v", p)
}

func TestCheckConfigFaults(t *testing.T) {
	for want, change := range map[string]func(*CheckConfig){
		"Rails: none given: name one, host:port": func(c *CheckConfig) { c.Rails = nil },
		"it is no rail that serves":              func(c *CheckConfig) { c.Rails = []string{Mem} },
		"RailLimits: 2 rates":                    func(c *CheckConfig) { c.RailLimits = []float64{1, 2} },
		"Limits.Line: 2: use a":                  func(c *CheckConfig) { c.Limits.Line = 2 },
		"Limits.Flaps: -1":                       func(c *CheckConfig) { c.Limits.Flaps = -1 },
		"Limits.Clock: -1s":                      func(c *CheckConfig) { c.Limits.Clock = -time.Second },
		"Duration: -1s: use 1ms":                 func(c *CheckConfig) { c.Duration = -time.Second },
		`Segment: "-1": use 1 byte`:              func(c *CheckConfig) { c.Segment = -1 },
		"Limits.Together: -0.1: use":             func(c *CheckConfig) { c.Limits.Together = -0.1 },
		`Location: "cpu:1023": `:                 func(c *CheckConfig) { c.Location = "cpu:1023" },
	} {
		cfg := quickCheck("", "127.0.0.1:0")
		change(&cfg)
		if r, err := Check(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || r != nil {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestEchoes: probes are echoed from the first question for facts until the session ends, and a second question makes no
// more echoes.
func TestEchoes(t *testing.T) {
	noLeaks(t)
	addr, _ := startServer(t, ServerConfig{})
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer("the target", "", conn)
	ask := func(m *message, answer string) *message {
		t.Helper()
		got, err := p.ask(t.Context(), m, answer, patience)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	ask(&message{Type: "hello", Protocol: protocol, Segment: 1 << 16}, "welcome")
	if quiet := ask(&message{Type: "facts"}, "known"); len(quiet.Echoes) != 1 || quiet.Echoes[0].Addr != "" {
		t.Errorf("nobody asked for echoes: %+v", quiet)
	}
	known := ask(&message{Type: "facts", Echo: true}, "known")
	if probes := probe(t.Context(), "127.0.0.1", known.Echoes[0], 600, 5); probes.Back != 5 || known.Host == nil {
		t.Errorf("%+v of %+v", probes, known)
	}
	if again := ask(&message{Type: "facts", Echo: true}, "known"); again.Echoes[0].Addr != "" {
		t.Errorf("a second echo of a rail: %+v", again)
	}
	p.close()
}

// TestCheckKeepsItsTurn: a client that has asked for facts is one that has asked for something, however long it probes then
// and whoever waits.
func TestCheckKeepsItsTurn(t *testing.T) {
	addr, _ := startServer(t, ServerConfig{yield: 20 * time.Millisecond})
	dial := func() *peer {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		p := newPeer("the target", "", conn)
		t.Cleanup(p.close)
		return p
	}
	hello := &message{Type: "hello", Protocol: protocol, Segment: 1 << 16}
	probes := dial()
	for _, m := range []*message{hello, {Type: "facts"}} {
		if _, err := probes.ask(t.Context(), m, map[string]string{"hello": "welcome", "facts": "known"}[m.Type], patience); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dial().ask(t.Context(), hello, "welcome", 200*time.Millisecond); err == nil || !strings.Contains(err.Error(), "it may be serving another client") {
		t.Errorf("the second client: %v", err)
	}
	if m, err := probes.ask(t.Context(), &message{Type: "clock"}, "time", patience); err != nil || m.Clock == 0 {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestHalfOfTheFacts: a target that does not say all that it is asked for is an error, whatever is missing.
func TestHalfOfTheFacts(t *testing.T) {
	for _, known := range []string{`"facts":[{}],"echoes":[{}]`, `"facts":[{}],"host":{}`} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			in := bufio.NewScanner(conn)
			for _, answer := range []string{`"type":"welcome","protocol":4,"info":{"Name":"x","Length":9}`, `"type":"known",` + known} {
				if in.Scan() {
					_, _ = io.WriteString(conn, "{"+answer+"}\n")
				}
			}
			in.Scan()
		}()
		if _, err := Check(t.Context(), quickCheck(lis.Addr().String(), "127.0.0.1:0")); err == nil || !strings.Contains(err.Error(), "answers facts with a part of them") {
			t.Errorf("%s: %v", known, err)
		}
		<-ended
		lis.Close()
	}
}
