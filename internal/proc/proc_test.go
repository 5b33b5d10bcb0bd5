package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of a test. It is no measure of speed.
const patience = time.Minute

// roleEnv has this binary be a child in place of a run of tests.
const roleEnv = "KVFERRY_TEST_PROC"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "tied":
		Tie()
		_ = Announce(HelloFD, "tied")
		select {}
	case "hello": // and ends at once
		_ = Announce(HelloFD, map[string]int{"Port": 7})
	case "listens":
		l, err := net.Listen("tcp", os.Args[1])
		fmt.Println(err)
		if err == nil {
			_, _ = l.Accept()
		}
	case "parent":
		p, err := Start(context.Background(), Cmd{Args: []string{"/bin/sleep", "1000"}})
		if err == nil {
			fmt.Println(p.Pid())
			select {}
		}
		fmt.Println(err)
	case "parent of a group":
		c := shell("trap '' TERM; sleep 1000 & echo $!; wait")
		c.Group, c.Log = true, os.Stdout
		if _, err := Start(context.Background(), c); err == nil {
			select {}
		}
	case "":
		os.Exit(m.Run())
	}
}

// role is this binary in a role.
func role(name string, args ...string) Cmd {
	return Cmd{Args: append([]string{os.Args[0]}, args...), Env: append(os.Environ(), roleEnv+"="+name), Grace: patience}
}

func shell(script string) Cmd { return Cmd{Args: []string{"/bin/sh", "-c", script}, Grace: patience} }

// start starts a child that has ended when the test does.
func start(t *testing.T, c Cmd) *Proc {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// ended waits for a child's end.
func ended(t *testing.T, p *Proc) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(patience):
		t.Fatalf("it has not ended: %q", p.Tail())
	}
}

// eventually polls a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// writes keeps each Write.
type writes struct{ all []string }

func (w *writes) Write(b []byte) (int, error) {
	w.all = append(w.all, string(b))
	return len(b), nil
}

func TestOutputIsWholeLines(t *testing.T) {
	t.Parallel()
	var log, out writes
	c := shell(`printf 'a'; printf 'b\nc' >&2; printf 'd\n'; printf 'e\n\nf' >&2`)
	c.Log = &log
	p := start(t, c)
	if err := p.Wait(); err != nil || !slices.Equal(log.all, []string{"ab\n", "cd\n", "e\n", "\n", "f"}) {
		t.Errorf("both outputs: %q, %v", log.all, err)
	}
	if tail := p.Tail(); !slices.Equal(tail, []string{"ab", "cd", "e", "f"}) {
		t.Errorf("tail %q", tail)
	}
	log.all, c.Out = nil, &out
	if err := start(t, c).Wait(); err != nil || !slices.Equal(log.all, []string{"b\n", "ce\n", "\n", "f"}) || !slices.Equal(out.all, []string{"ad\n"}) {
		t.Errorf("log %q, output %q, %v", log.all, out.all, err)
	}
	var texts []string
	c = shell(`printf 'a\r\nb'`)
	c.Log = Lines(func(line string) { texts = append(texts, line) })
	if err := start(t, c).Wait(); err != nil || !slices.Equal(texts, []string{"a", "b"}) {
		t.Errorf("%q, %v", texts, err)
	}
}

func TestLongLineIsCut(t *testing.T) {
	t.Parallel()
	var sizes []int
	l := &lines{emit: func(line []byte) { sizes = append(sizes, len(line)) }}
	for range 5 {
		if n, err := l.Write(bytes.Repeat([]byte("x"), maxLine/4)); n != maxLine/4 || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	if !slices.Equal(sizes, []int{maxLine, maxLine / 4}) {
		t.Errorf("%d", sizes)
	}
}

// full is a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestLogThatFailsEndsNoChild(t *testing.T) {
	t.Parallel()
	c := shell(`for i in 1 2 3; do echo $i; echo $i >&2; done; echo last >&2`)
	c.Log, c.Out = full{}, full{}
	p := start(t, c)
	if err := p.Wait(); err != nil || !slices.Contains(p.Tail(), "last") {
		t.Errorf("%v, %q", err, p.Tail())
	}
}

func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	p := start(t, shell(`i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; done; exit 3`))
	err := p.Wait()
	if tail := p.Tail(); len(tail) != tailLines || tail[tailLines-1] != "40" {
		t.Errorf("%q", tail)
	}
	if text := p.WithLog(err).Error(); !strings.HasPrefix(text, "exit status 3: 26\n") || p.WithLog(nil) != nil {
		t.Errorf("%q, %v", text, p.WithLog(nil))
	}
}

func TestAnnounce(t *testing.T) {
	t.Parallel()
	c := shell(`echo hold on; echo READY 1; echo READY 2; echo READY 3; cat`)
	c.Announce = "READY"
	p := start(t, c)
	if p.Hello != "READY 1\n" {
		t.Errorf("hello %q", p.Hello)
	}
	if err := p.Stop(); err != nil || p.Wait() != nil { // by its standard input
		t.Errorf("%v, %v", err, p.Wait())
	}
	c = shell(`read line; exec sleep 1000`)
	c.Announce = "READY"
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no patience")
	cancel(why)
	if _, err := Start(ctx, c); !errors.Is(err, why) {
		t.Errorf("a start that was cancelled: %v", err)
	}
	c = shell(`echo no such device; exit 7`)
	c.Announce = "READY"
	if _, err := Start(t.Context(), c); err == nil || err.Error() != "ended by itself: exit status 7: no such device" {
		t.Errorf("an end before the announcement: %v", err)
	}
}

// TestHelloOfChildThatEnds: a child that ends as soon as it has said hello has said it.
func TestHelloOfChildThatEnds(t *testing.T) {
	t.Parallel()
	for range 5 {
		c := role("hello")
		c.Hello = true
		if p := start(t, c); p.Hello != `{"Port":7}`+"\n" {
			t.Fatalf("hello %q", p.Hello)
		}
	}
	for range 100 { // both are there, and select chooses at random
		p := &Proc{c: Cmd{Hello: true}, hello: make(chan string, 1), done: make(chan struct{})}
		p.hello <- "hello"
		close(p.done)
		if err := p.await(t.Context()); err != nil || p.Hello != "hello" {
			t.Fatalf("%q, %v", p.Hello, err)
		}
	}
	p := start(t, shell("cat"))
	p.reading.Add(1) // as if its hello were not read yet
	p.In.Close()
	select {
	case <-p.Done():
		t.Error("it is done, and its hello has not been read")
	case <-time.After(100 * time.Millisecond):
	}
	p.reading.Done()
	ended(t, p)
}

// TestHello: a child's own files come behind the descriptor for its hello.
func TestHello(t *testing.T) {
	t.Parallel()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c := shell(`echo /proc/self/fd/4 >&3`)
	c.Hello, c.Files = true, []*os.File{null}
	if p := start(t, c); p.Hello != "/proc/self/fd/4\n" {
		t.Errorf("hello %q", p.Hello)
	}
	c = shell(`echo why >&2; exit 7`)
	c.Hello = true
	if _, err := Start(t.Context(), c); err == nil || err.Error() != "ended by itself: exit status 7: why" {
		t.Errorf("an end without a hello: %v", err)
	}
}

func TestStop(t *testing.T) {
	t.Parallel()
	c := shell(`trap 'echo drained; exit 5' TERM; echo READY; while :; do read line || sleep 0.01; done`)
	c.Announce, c.Stop = "READY", syscall.SIGTERM
	p := start(t, c)
	if err := p.Stop(); err != nil || p.Err() != nil || !slices.Contains(p.Tail(), "drained") {
		t.Errorf("by SIGTERM: %v, %v, %q", err, p.Err(), p.Tail())
	}
	if err := p.Wait(); err == nil || err.Error() != "exit status 5" {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Errorf("again: %v", err)
	}
	c = shell(`trap '' TERM; echo READY; while :; do sleep 0.01; done`)
	c.Announce, c.Stop, c.Grace = "READY", syscall.SIGTERM, 10*time.Millisecond
	p = start(t, c)
	if err := p.Stop(); err == nil || err.Error() != "did not end within 10ms and was killed" {
		t.Errorf("of a deaf child: %v", err)
	}
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Error(err)
	}
}

// TestErr: an end is a fault only if the parent has not asked for it.
func TestErr(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"exit 0": "ended by itself: exit status 0", "exit 3": "ended by itself: exit status 3", "kill $$": "ended by itself: signal: terminated",
	} {
		p := start(t, shell(script))
		ended(t, p)
		if err := p.Err(); err == nil || err.Error() != want {
			t.Errorf("%s: %v", script, err)
		}
		if err := p.Stop(); err == nil || err.Error() != want {
			t.Errorf("%s, stopped: %v", script, err)
		}
	}
	p := start(t, shell("cat"))
	if err := p.Err(); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	p.Kill()
	if err := p.Err(); err != nil || errors.Is(p.Wait(), ErrKilled) {
		t.Errorf("killed by its parent: %v, %v", err, p.Wait())
	}
}

func TestKilledBySomebody(t *testing.T) {
	t.Parallel()
	p := start(t, shell("cat"))
	if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	if err := p.Err(); !errors.Is(err, ErrKilled) || !strings.HasPrefix(err.Error(), "ended by itself: signal: killed: somebody else has ended it, or the kernel because memory ran out") {
		t.Error(err)
	}
	for n, want := range map[int64]string{0: ErrKilled.Error(), 2: ErrKilled.Error() + ": the kernel has ended 2 for that meanwhile"} {
		if err := killed(n); !errors.Is(err, ErrKilled) || err.Error() != want {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := shell(`cat; pwd; echo $A; echo bad luck >&2; exit 4`)
	c.Out, c.Dir, c.Env = &out, "/", []string{"A=one"}
	if err := Run(t.Context(), c); err == nil || err.Error() != "exit status 4: bad luck" || out.String() != "/\none\n" {
		t.Errorf("%v, %q", err, out.String())
	}
	if err := Run(t.Context(), Cmd{Args: []string{"/nowhere/no-such-program"}}); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c = shell(`trap 'echo kept; exit 5' TERM; echo READY; while :; do sleep 0.01; done`)
	c.Stop = syscall.SIGTERM
	c.Log = Lines(func(line string) {
		if line == "READY" {
			cancel()
		}
	})
	if err := Run(ctx, c); err == nil || !strings.HasPrefix(err.Error(), "exit status 5: READY\n") || !strings.HasSuffix(err.Error(), "kept") {
		t.Errorf("stopped by its context: %v", err)
	}
}

// TestTie: a tied child ends with its standard input, whatever the kernel does.
func TestTie(t *testing.T) {
	t.Parallel()
	c := role("tied")
	c.Hello = true
	p := start(t, c)
	p.In.Close()
	ended(t, p)
	if err := p.Err(); err == nil || err.Error() != "ended by itself: exit status 1" {
		t.Error(err)
	}
}

func TestGroup(t *testing.T) {
	t.Parallel()
	p := start(t, shell("cat"))
	if group, err := syscall.Getpgid(p.Pid()); err != nil || group != p.Pid() {
		t.Errorf("child %d is in group %d: %v", p.Pid(), group, err)
	}
}

// TestStdinIsTheParents: the parent alone holds the other end, so that it ends with it even
// beside children that were started later.
func TestStdinIsTheParents(t *testing.T) {
	t.Parallel()
	first := start(t, shell("cat; exit 9"))
	start(t, shell("cat"))
	if _, err := io.WriteString(first.In, "x\n"); err != nil {
		t.Fatal(err)
	}
	first.In.Close()
	ended(t, first)
	if err := first.Wait(); err == nil || err.Error() != "exit status 9" || !slices.Equal(first.Tail(), []string{"x"}) {
		t.Errorf("%v, %q", err, first.Tail())
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
