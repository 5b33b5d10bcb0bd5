package rail

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock"
	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// startServer serves in this process until the test ends. served gets a line for
// each client.
func startServer(t *testing.T, cfg ServerConfig) (addr string, served chan string) {
	t.Helper()
	served = make(chan string, 16*maxVisitors)
	cfg.Log = &hook{f: func(line string) { served <- line }}
	if cfg.Rails == nil {
		cfg.Rails = []string{"127.0.0.1:0"}
	}
	cfg.Listen, cfg.Segment = "127.0.0.1:0", 4<<20
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return s.Addr(), served
}

// TestServer: one client after another, whatever the ones before were.
func TestServer(t *testing.T) {
	noLeaks(t)
	addr, served := startServer(t, ServerConfig{})
	say := func(text string) (answer string) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if text == "" {
			return ""
		}
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return line
	}
	for _, c := range []struct{ text, answer, log string }{
		{"GET / HTTP/1.1\r\n\r\n", "this is a target of kvferry rail bench", "no line of this protocol"},
		{`{"type":"hello","protocol":99,"segment":4096}` + "\n", "version 4 of the protocol", "version 99"},
		{`{"type":"hello","protocol":4,"segment":99999999}` + "\n", "larger --segment", "larger --segment"},
		{`{"type":"hello","protocol":4}` + "\n", "a segment of 0 bytes", "a segment of 0 bytes"},
		{`{"type":"point","protocol":4}` + "\n", "version 4", `"point"`},
		{"", "", "EOF"},
	} {
		if got := say(c.text); !strings.Contains(got, c.answer) {
			t.Errorf("%q: answered %q, want %q", c.text, got, c.answer)
		}
		if line := <-served; !strings.Contains(line, c.log) {
			t.Errorf("%q: logged %q, want %q", c.text, line, c.log)
		}
	}
	for range 2 {
		cfg := quick(addr)
		r, err := Run(t.Context(), cfg)
		if err != nil || len(r.Points) != 2 {
			t.Fatalf("%v, %+v", err, r)
		}
		for i := range r.Points {
			sound(t, &r.Points[i])
		}
		if line := <-served; !strings.Contains(line, "2 points") {
			t.Errorf("logged %q", line)
		}
	}
	cfg := quick(addr)
	cfg.Segment = 8 << 20
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "larger --segment") {
		t.Errorf("%v", err)
	}
	<-served
}

// TestServerRefusesNonsense: a client that has said hello and then makes no sense
// gets an error, and does no harm.
func TestServerRefusesNonsense(t *testing.T) {
	addr, served := startServer(t, ServerConfig{})
	for text, want := range map[string]string{
		`{"type":"point"}`:   "makes no sense",
		`{"type":"check"}`:   "makes no sense",
		`{"type":"welcome"}`: "makes no sense",
		`{"type":"point","plan":{"op":7,"block":4096,"batch":1,"threads":1,"depth":1,"segment":65536}}`:                                                    "makes no sense",
		`{"type":"point","plan":{"op":1,"block":4096,"batch":1,"threads":1,"depth":1,"segment":1073741824,"check":true}}`:                                  "the segment has 65536",
		`{"type":"point","plan":{"op":1,"block":9000000000000000000,"batch":1,"threads":1,"depth":1,"segment":65536,"check":true}}`:                        "makes no sense",
		`{"type":"point","plan":{"op":0,"block":64,"batch":1,"threads":1,"depth":1,"segment":65536}}` + "\n" + `{"type":"check","landed":[{},{}]}`:         "makes no sense",
		`{"type":"point","plan":{"op":0,"block":64,"batch":1,"threads":1,"depth":1,"segment":65536}}` + "\n" + `{"type":"check","landed":[{"blocks":-1}]}`: "claims -1 blocks",
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, `{"type":"hello","protocol":4,"segment":65536}`+"\n"+text+"\n"); err != nil {
			t.Fatal(err)
		}
		answers, err := io.ReadAll(conn) // the server closes it
		if err != nil || !strings.Contains(string(answers), want) {
			t.Errorf("%s: %v, answers %s", text, err, answers)
		}
		conn.Close()
		<-served
	}
}

// TestClientOfSomethingElse: what listens there is no target, or another version.
func TestClientOfSomethingElse(t *testing.T) {
	for answer, want := range map[string]string{
		"220 mail.example.org ESMTP\r\n":                                        "does not speak the protocol of kvferry rail bench",
		`{"type":"error","error":"version 4 here"}` + "\n":                      "version 4 here",
		`{"type":"welcome","protocol":5,"info":{"Name":"x"}}` + "\n":            "speaks version 5 of the protocol and this is 4",
		`{"type":"usage"}` + "\n":                                               `answers hello with "usage"`,
		`{"type":"welcome","protocol":4}` + "\n":                                "speaks version 4",
		`{"type":"welcome","protocol":4,"info":{"Name":"x","Length":9}}` + "\n": "give both ends rails of one kind",
		"": "has gone",
	} {
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
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, answer)
		}()
		if _, err := Run(t.Context(), quick(lis.Addr().String())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
		<-ended
		lis.Close()
	}
}

// TestServerKilled: kill -9 of the target in a point ends the run at once, with the
// points before it.
func TestServerKilled(t *testing.T) {
	noLeaks(t)
	child, addr, err := startChild(t.Context(), ServerConfig{Rails: []string{"127.0.0.1:0"}, Listen: "127.0.0.1:0", Segment: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	cfg := quick(addr)
	cfg.Ops = []transport.Op{transport.Write, transport.Read}
	cfg.Progress = &hook{f: func(line string) {
		if strings.HasPrefix(line, "point 2/4") {
			child.Signal(syscall.SIGKILL)
		}
	}}
	began := time.Now()
	r, err := Run(t.Context(), cfg) // a batch that nobody ends takes cfg.Timeout
	child.Kill()
	if err == nil || !strings.Contains(err.Error(), "has gone") || r.Interrupted || !strings.Contains(r.Error, "has gone") || len(r.Points) < 2 || len(r.Points) > 3 {
		t.Fatalf("%v, %+v", err, r)
	}
	if took := time.Since(began); took > cfg.Timeout {
		t.Errorf("it took %v to notice", took)
	}
	sound(t, &r.Points[1])
}

// TestClientKilled: after kill -9 of a client in the middle of a point the next one
// is served.
func TestClientKilled(t *testing.T) {
	addr, served := startServer(t, ServerConfig{})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), clientEnv+"="+addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n') // of its first point, many are to come
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.HasPrefix(line, "point 1/") {
		t.Fatalf("%q, %v", line, err)
	}
	r, err := Run(t.Context(), quick(addr))
	if err != nil {
		t.Fatal(err)
	}
	sound(t, &r.Points[0])
	if line := <-served; !strings.Contains(line, "client 127.0.0.1:") {
		t.Error(line)
	}
}

// TestCrowd: who connects and says nothing, or says hello and nothing more, does not
// keep a client from being served.
func TestCrowd(t *testing.T) {
	noLeaks(t)
	for _, text := range []string{"", `{"type":"hello","protocol":4,"segment":65536}` + "\n"} {
		addr, _ := startServer(t, ServerConfig{yield: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		for range 2 * maxVisitors {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, text); err != nil {
				t.Log(err) // it has made room already
			}
		}
		if r, err := Run(t.Context(), quick(addr)); err != nil || len(r.Points) != 2 {
			t.Errorf("beside %d connections that say %q: %v", 2*maxVisitors, text, err)
		}
	}
}

// TestOnce: the server ends after its client, not after what is none.
func TestOnce(t *testing.T) {
	noLeaks(t)
	var log bytes.Buffer
	s, err := Listen(ServerConfig{Rails: []string{"127.0.0.1:0"}, Listen: "127.0.0.1:0", Segment: 4 << 20, Once: true, Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(t.Context()) }()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(conn, "hello?")
	_, _ = io.ReadAll(conn)
	conn.Close()
	if _, err := Run(t.Context(), quick(s.Addr())); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("%v\n%s", err, log.String())
	}
}

func TestServerFaults(t *testing.T) {
	for want, cfg := range map[string]ServerConfig{
		"Rails: none given":                      {},
		"reaches this process only":              {Rails: []string{Mem}},
		`Segment: "-1": use`:                     {Rails: []string{"tcp/lo"}, Segment: -1},
		`Listen: "18515": write host`:            {Rails: []string{"tcp/lo"}, Listen: "18515"},
		"no interface":                           {Rails: []string{"tcp/nosuch0"}, Listen: "127.0.0.1:0"},
		"Listen: \"192.0.2.77:1\": no interface": {Rails: []string{"127.0.0.1:0"}, Listen: "192.0.2.77:1"},
	} {
		if _, err := Listen(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFailedBatches: a batch that fails stops the load, is counted, and its blocks
// are not among those to check.
func TestFailedBatches(t *testing.T) {
	noLeaks(t)
	network := transporttest.NewNetwork()
	ours, theirs := network.Rail("a"), network.Rail("b")
	ours.Inject(transporttest.Fault{Slice: 6, Kind: transporttest.Fail})
	clk := clock.Std()
	initiator, err := newEngine("", transport.Config{Rails: []transport.Rail{ours}, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	defer initiator.Close()
	owner, err := newEngine("", transport.Config{Rails: []transport.Rail{theirs}})
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close()
	p := &plan{Number: 1, Block: 64, Batch: 2, Threads: 1, Depth: 1, Segment: 1 << 12}
	local, remote := make([]byte, p.Segment), make([]byte, p.Segment)
	p.source(local, 0)
	if _, err := initiator.Register("a", local, "cpu:0"); err != nil {
		t.Fatal(err)
	}
	seg, err := owner.Register("b", remote, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	target, err := initiator.Open(seg.Info())
	if err != nil {
		t.Fatal(err)
	}
	l := newLoad(p, clk, the(initiator, target), local, time.Minute)
	l.open.Store(1)
	l.start(t.Context())
	<-l.failed
	l.wait()
	n, first := l.errors()
	if n != 1 || !errors.Is(first, transport.ErrBadKey) {
		t.Errorf("%d batches failed, the first: %v", n, first)
	}
	if sum := l.sum(); sum.batches != 2 || sum.bytes != 4*64 {
		t.Errorf("%+v", sum)
	}
	landed := l.landings()
	if v, err := p.check(remote, landed); err != nil || v.Checked != 4 || v.Bad != 0 || len(landed[0].Lost) != 2 {
		t.Errorf("%+v, %+v, %v", landed, v, err)
	}
}

// FuzzTarget: whatever comes over the control connection, the target answers or
// hangs up, and takes no more memory than it may.
func FuzzTarget(f *testing.F) {
	const hello = `{"type":"hello","protocol":4,"segment":4096}` + "\n"
	for _, s := range []string{
		"", "\n", "{}", hello, hello + hello,
		hello + `{"type":"point","plan":{"number":1,"op":1,"block":100,"batch":2,"threads":3,"depth":4,"segment":4096,"check":true,"corrupt":[1,-1]}}`,
		hello + `{"type":"point","plan":{"op":0,"block":8,"batch":1,"threads":1,"depth":1,"segment":4096}}` + "\n" + `{"type":"check","landed":[{"blocks":3,"lost":[1,9,-4]}]}`,
		hello + `{"type":"mark"}` + "\n" + `{"type":"mark"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		engine, err := newEngine("", transport.Config{Rails: []transport.Rail{transporttest.NewNetwork().Rail("target")}})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		here, there := net.Pipe()
		answers := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(here)
			answers <- all
		}()
		go func() {
			// What it does not read any more fails here when it hangs up.
			_, _ = here.Write(text)
			_, _ = io.WriteString(here, "\n{\"type\":\"bye\"}\n")
		}()
		target := &target{engine: engine, allocate: transport.MapMemory, most: 4096, location: "cpu:0"}
		err = target.serve(there)
		there.Close()
		all := <-answers
		here.Close()
		if err == nil || len(target.mem) > 4096 {
			t.Errorf("%q: %v, answers %s", text, err, all)
		}
	})
}

// the is one initiator.
func the(e *transport.Engine, t *transport.Target) []initiator { return []initiator{{e, t}} }
