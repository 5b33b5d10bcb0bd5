//go:build unix

package tcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/bundle"
	"kvferry/transport/transporttest"
)

// wide is a rail of so many connections to each peer's.
func wide(t testing.TB, cfg Config) *Rail {
	t.Helper()
	cfg.Name, cfg.Listen = "tcp/lo", "127.0.0.1:0"
	cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestWideContract(t *testing.T) {
	transporttest.TestRail(t, func(t testing.TB) transport.Rail { return wide(t, Config{Conns: 4}) }, transporttest.Checked)
}

// TestWideCrowded: a peer that has no room for as many ends those that are idle, and the others carry on.
func TestWideCrowded(t *testing.T) {
	transporttest.CheckLeaks(t)
	target := wide(t, Config{ConnsPerPeer: 2})
	defer target.Close()
	target.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	r := wide(t, Config{Conns: 4})
	defer r.Close()
	mem, local := make([]byte, 8<<20), bytes.Repeat([]byte{5}, 8<<20)
	key, err := target.Register(mem, transport.Whole(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	ep, err := r.Dial(t.Context(), target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	conns := func() int { return len(transport.SecretsOf(ep)) }
	clocktest.Until(t, "two connections to be left", func() bool { return conns() == 2 })
	carry(t, ep, transport.Write, local, key, 16)
	clear(local)
	carry(t, ep, transport.Read, local, key, 16)
	if !bytes.Equal(mem, bytes.Repeat([]byte{5}, 8<<20)) || !bytes.Equal(mem, local) {
		t.Error("other bytes arrived")
	}
	if n := conns(); n != 2 {
		t.Errorf("%d connections, and the peer takes 2", n)
	}
}

// TestFit: a path gets the connections that its width says, and gives them back; a rail without a number of
// its own has one for each, until it is closed.
func TestFit(t *testing.T) {
	transporttest.CheckLeaks(t)
	target, one, auto := wide(t, Config{}), wide(t, Config{Conns: 1}), wide(t, Config{})
	defer target.Close()
	defer one.Close()
	defer auto.Close()
	paths := func(r *Rail) int {
		r.tuner.mu.Lock()
		defer r.tuner.mu.Unlock()
		return len(r.tuner.paths)
	}
	ep, err := auto.Dial(t.Context(), target.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if n := paths(auto); n != 1 {
		t.Errorf("%d paths have a width", n)
	}
	ep.Close()
	clocktest.Until(t, "the path to be forgotten", func() bool { return paths(auto) == 0 })

	if ep, err = one.Dial(t.Context(), target.Addr()); err != nil {
		t.Fatal(err)
	}
	if n := paths(one); n != 0 {
		t.Errorf("%d paths have a width although they have a number", n)
	}
	more := 1
	p := &path{
		Endpoint: ep.(*bundle.Endpoint), addr: target.Addr(),
		connect: func(ctx context.Context) (transport.Endpoint, error) { return one.DialOne(ctx, target.Addr()) },
		step:    func(time.Duration, bundle.Look) int { return more },
	}
	one.tuner.fit(p, time.Now())
	conns := func() int { return len(transport.SecretsOf(ep)) }
	clocktest.Until(t, "a second connection", func() bool { return conns() == 2 })
	more = -1
	clocktest.Until(t, "it to go", func() bool {
		one.tuner.fit(p, time.Now())
		return conns() == 1
	})
}

const wideLen = 64 << 20

// The test binary is one end of a transfer, if it is started as that.
func init() {
	switch transporttest.Role() {
	case "wide target":
		e, seg := wideEngine(nil)
		fmt.Println(string(must(json.Marshal(seg.Info()))))
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = e.Close()
		os.Exit(0)
	case "wide initiator":
		var info transport.SegmentInfo
		if err := json.NewDecoder(os.Stdin).Decode(&info); err != nil {
			os.Exit(1)
		}
		e, seg := wideEngine(nil)
		to := must(e.Open(info))
		for i := 0; ; i++ {
			b := e.Submit(to, []transport.Request{{Op: transport.Write, Local: seg.Bytes()}}, transport.BatchOptions{Imm: uint64(i), HasImm: i%2 == 0})
			if <-b.Done(); b.Err() != nil {
				os.Exit(1)
			}
			if i == 1 {
				fmt.Println("busy")
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// wideEngine is an engine with four connections to each peer, and a segment.
func wideEngine(imm func(transport.Immediate)) (*transport.Engine, *transport.Segment) {
	quiet := slog.New(slog.DiscardHandler)
	r := must(New(Config{Name: "tcp/lo", Listen: "127.0.0.1:0", Conns: 4, Logger: quiet}))
	e := must(transport.New(transport.Config{Rails: []transport.Rail{r}, OnImmediate: imm, Logger: quiet}))
	return e, must(e.Register("memory", make([]byte, wideLen), "*"))
}

// wideTarget starts a process that is a target, and opens what it lends.
func wideTarget(t *testing.T) (child *exec.Cmd, e *transport.Engine, seg *transport.Segment, to *transport.Target) {
	t.Helper()
	var info transport.SegmentInfo
	child, _, out := transporttest.StartRole(t, "wide target")
	line, err := out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &info)
	}
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	e, seg = wideEngine(nil)
	if to, err = e.Open(info); err != nil {
		t.Fatal(err)
	}
	return child, e, seg, to
}

// TestWideExpress: what goes past others has one connection, however many those have: seven that are lost
// can be named to the peer.
func TestWideExpress(t *testing.T) {
	transporttest.CheckLeaks(t)
	owner, remote := wideEngine(nil)
	defer owner.Close()
	e, seg := wideEngine(nil)
	defer e.Close()
	to, err := e.Open(remote.Info())
	if err != nil {
		t.Fatal(err)
	}
	do := func(reqs ...transport.Request) *transport.Batch {
		return e.Submit(to, reqs, transport.BatchOptions{Timeout: time.Minute})
	}
	half := seg.Bytes()[:wideLen/2]
	clocktest.Until(t, "an express", func() bool {
		bulk := do(transport.Request{Op: transport.Write, Local: half})
		small := do(transport.Request{Op: transport.Write, Local: seg.Bytes()[wideLen-8:], Offset: wideLen - 8})
		<-small.Done()
		<-bulk.Done()
		return e.Rails()[0].Conns == 2
	})
	if conns := e.Rails()[0].Congestion; conns[cubic] != 5 {
		t.Errorf("four connections and an express are %v", conns)
	}
}

// TestWideStopped: the peer stops. A batch ends at its deadline, and one that is canceled soon after that;
// the memory is ours at once, and when the peer goes on nothing of them lands after what is sent then.
func TestWideStopped(t *testing.T) {
	transporttest.CheckLeaks(t)
	child, e, seg, to := wideTarget(t)
	defer e.Close()
	whole := func(op transport.Op) []transport.Request {
		return []transport.Request{{Op: op, Local: seg.Bytes()}}
	}
	do := func(op transport.Op) {
		t.Helper()
		b := e.Submit(to, whole(op), transport.BatchOptions{Timeout: time.Minute})
		if <-b.Done(); b.Err() != nil {
			t.Fatalf("%v: %v", op, b.Err())
		}
	}
	for round, end := range []func() *transport.Batch{
		func() *transport.Batch {
			return e.Submit(to, whole(transport.Write), transport.BatchOptions{Timeout: 200 * time.Millisecond})
		},
		func() *transport.Batch {
			return e.Submit(to, whole(transport.Read), transport.BatchOptions{Timeout: 200 * time.Millisecond})
		},
		func() *transport.Batch {
			b := e.Submit(to, whole(transport.Write), transport.BatchOptions{Timeout: time.Minute})
			b.Cancel()
			return b
		},
	} {
		do(transport.Write)
		_ = child.Process.Signal(syscall.SIGSTOP)
		b := end()
		clocktest.Receive(t, b.Done(), "a batch to a peer that stopped")
		if !errors.Is(b.Err(), transport.ErrDeadline) && !errors.Is(b.Err(), transport.ErrCanceled) {
			t.Errorf("round %d: %v", round, b.Err())
		}
		want := bytes.Repeat([]byte{byte(round + 1)}, wideLen)
		copy(seg.Bytes(), want)
		_ = child.Process.Signal(syscall.SIGCONT)
		do(transport.Write)
		clear(seg.Bytes())
		do(transport.Read)
		if !bytes.Equal(seg.Bytes(), want) {
			t.Errorf("round %d: what was given up landed later", round)
		}
	}
}

// TestWideKilledTarget: the peer is killed. What is under way ends, and the memory is ours.
func TestWideKilledTarget(t *testing.T) {
	transporttest.CheckLeaks(t)
	child, e, seg, to := wideTarget(t)
	defer e.Close()
	_ = child.Process.Signal(syscall.SIGSTOP) // not all of it is through by then
	var batches []*transport.Batch
	for i := range 8 {
		part := seg.Bytes()[i*wideLen/8 : (i+1)*wideLen/8]
		batches = append(batches, e.Submit(to, []transport.Request{{Op: transport.Op(i % 2), Local: part, Offset: int64(i * wideLen / 8)}}, transport.BatchOptions{Timeout: 3 * time.Second}))
	}
	_ = child.Process.Kill()
	failed := 0
	for _, b := range batches {
		clocktest.Receive(t, b.Done(), "a batch to a peer that was killed")
		if b.Err() != nil {
			failed++
			if !errors.Is(b.Err(), transport.ErrUnreachable) {
				t.Error(b.Err())
			}
		}
	}
	clear(seg.Bytes())
	if failed == 0 {
		t.Error("nothing was under way")
	}
}

// TestWideKilledInitiator: the peer is killed in the middle of its writes. All its connections end, and
// the memory is ours when the segment is closed.
func TestWideKilledInitiator(t *testing.T) {
	transporttest.CheckLeaks(t)
	e, seg := wideEngine(func(transport.Immediate) {})
	defer e.Close()
	child, in, out := transporttest.StartRole(t, "wide initiator")
	if err := json.NewEncoder(in).Encode(seg.Info()); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); line != "busy\n" {
		t.Fatalf("%q: %v", line, err)
	}
	_ = child.Process.Kill()
	mem := seg.Bytes()
	if err := seg.Close(); err != nil {
		t.Error(err)
	}
	clear(mem)
	clocktest.Until(t, "its connections to end", func() bool { return e.Rails()[0].Congestion[cubic]+e.Rails()[0].Congestion[bbr] == 0 })
	if !bytes.Equal(mem, make([]byte, wideLen)) {
		t.Error("bytes landed in memory that was given back")
	}
}

// BenchmarkConns has several connections beside one, in turns, with and without an immediate behind each
// batch. Both ends are in one process.
func BenchmarkConns(b *testing.B) {
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		for _, imm := range []bool{false, true} {
			for _, c := range cases {
				if imm && op == transport.Read {
					continue
				}
				b.Run(fmt.Sprintf("%v/%s/imm=%v", op, c.name, imm), func(b *testing.B) {
					widths := []int{1, 2, 4}
					movers := make([]mover, len(widths))
					rates, cpus := make([][]float64, len(widths)), make([][]float64, len(widths))
					for i, conns := range widths {
						ini, local, tgt, stop := newEnginesOf(b, func() *Rail { return wide(b, Config{Conns: conns}) })
						defer stop()
						movers[i] = slabMover(ini, local, tgt, transport.BatchOptions{HasImm: imm}, op, c.size, c.batch)
						rate(b, movers[i], 1<<28)
					}
					for b.Loop() {
						for i, m := range movers {
							r, cpu := rate(b, m, 1e9)
							rates[i], cpus[i] = append(rates[i], r), append(cpus[i], cpu)
						}
					}
					for i, conns := range widths {
						b.ReportMetric(median(rates[i]), fmt.Sprintf("GB/s-%d", conns))
						b.ReportMetric(median(cpus[i]), fmt.Sprintf("cpu-s/GB-%d", conns))
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
