package capi_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/bindings/capi"
	"kvferry/transport"
)

// open is an engine over TCP on loopback, which is closed with the test.
func open(t *testing.T) *capi.Engine {
	t.Helper()
	e, err := capi.Open(capi.Options{Rails: "127.0.0.1:0", Log: "off"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// memory is n bytes that Go's collector knows nothing of, and their segment.
func memory(t *testing.T, e *capi.Engine, name string, n int) ([]byte, capi.Handle) {
	t.Helper()
	mem, release, err := transport.MapMemory(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the engine is closed, and so after Deregister
		_ = release()
	})
	h, err := e.Register(capi.Memory{Address: unsafe.Pointer(&mem[0]), Length: uint64(n), Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Deregister(h) })
	return mem, h
}

// connect is a target on one engine: segments of the other.
func connect(t *testing.T, from, to *capi.Engine, segments ...capi.Handle) capi.Handle {
	t.Helper()
	ad, err := to.Advertise(segments)
	if err != nil {
		t.Fatal(err)
	}
	target, err := from.Connect(ad)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// wait returns when the engine's descriptor is readable.
func wait(t *testing.T, e *capi.Engine) {
	t.Helper()
	if !readable(t, e, time.Minute) {
		t.Fatal("nothing to poll after a minute")
	}
}

func readable(t *testing.T, e *capi.Engine, d time.Duration) bool {
	t.Helper()
	fd, err := e.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(d.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

// finish is the completion of the only batch under way.
func finish(t *testing.T, e *capi.Engine) capi.Completion {
	t.Helper()
	wait(t, e)
	all := e.Poll(2)
	if len(all) != 1 {
		t.Fatalf("%d completions of a batch: %+v", len(all), all)
	}
	return all[0]
}

func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(&mem[0])) }

// TestTransfer: pieces at a distance, also a negative one, of two segments, land where they belong and nowhere else,
// and come back by a READ.
func TestTransfer(t *testing.T) {
	there, here := open(t), open(t)
	theirs, segment := memory(t, there, "kv", 1<<16)
	second, other := memory(t, there, "more", 1<<12)
	ours, _ := memory(t, here, "local", 1<<16)
	target := connect(t, here, there, segment, other)
	for i := range ours {
		ours[i] = byte(i*7 + i>>8 | 1)
	}
	ranges := []capi.Range{
		{Local: address(ours), Remote: 1000, Length: 100, Count: 50, LocalStride: 300, RemoteStride: 200},
		{Local: address(ours) + 40000, Remote: 30000, Length: 64, Count: 8, LocalStride: -64, RemoteStride: 128},
		{Local: address(ours) + 50000, Remote: 50000, Length: 1000, Count: 5, LocalStride: 1000, RemoteStride: 1000},
		{Local: address(ours) + 60000, Remote: 60000, Length: 10},
		{Local: address(ours) + 61000, Remote: 100, Length: 1000, Count: 2, LocalStride: 2000, RemoteStride: 1500, Segment: 1},
	}
	wants := [][]byte{make([]byte, len(theirs)), make([]byte, len(second))}
	total := 0
	for _, r := range ranges {
		for k := range max(int(r.Count), 1) {
			from, to := int(r.Local-address(ours))+k*int(r.LocalStride), int(r.Remote)+k*int(r.RemoteStride)
			total += copy(wants[r.Segment][to:to+int(r.Length)], ours[from:])
		}
	}
	batch, err := here.Submit(target, capi.OpWrite, ranges, capi.BatchOptions{UserData: 42})
	if err != nil {
		t.Fatal(err)
	}
	c := finish(t, here)
	if c.Err != nil || c.Batch != batch || c.UserData != 42 || c.Bytes != int64(total) || c.Elapsed <= 0 {
		t.Errorf("%+v, want batch %d of %d bytes", c, batch, total)
	}
	if !bytes.Equal(theirs, wants[0]) || !bytes.Equal(second, wants[1]) {
		t.Error("the target has other bytes")
	}
	kept := bytes.Clone(ours)
	clear(ours)
	if _, err := here.Submit(target, capi.OpRead, ranges, capi.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := finish(t, here); c.Err != nil {
		t.Fatal(c.Err)
	}
	for _, r := range ranges {
		for k := range max(int(r.Count), 1) {
			at := int(r.Local-address(ours)) + k*int(r.LocalStride)
			if !bytes.Equal(ours[at:at+int(r.Length)], kept[at:at+int(r.Length)]) {
				t.Errorf("the piece at %d came back with other bytes", at)
			}
		}
	}
	rails := here.Rails()
	if len(rails) != 1 || rails[0].Written != uint64(total) || rails[0].Read != uint64(total) || !strings.HasPrefix(string(rails[0].Name[:]), "tcp/0\x00") {
		t.Errorf("%+v, want %d bytes in both directions", rails, total)
	}
}

// TestCompletions: each batch has one, in any number of polls, and the descriptor is readable for as
// long as one waits.
func TestCompletions(t *testing.T) {
	there, here := open(t), open(t)
	_, segment := memory(t, there, "kv", 1<<12)
	ours, _ := memory(t, here, "local", 1<<12)
	target := connect(t, here, there, segment)
	if readable(t, here, 0) {
		t.Error("readable before there is a batch")
	}
	under := map[capi.Handle]uint64{}
	for i := range uint64(20) {
		h, err := here.Submit(target, capi.OpWrite, []capi.Range{{Local: address(ours), Length: 64}}, capi.BatchOptions{UserData: i})
		if err != nil {
			t.Fatal(err)
		}
		under[h] = i
	}
	for len(under) > 0 {
		wait(t, here)
		some := here.Poll(3)
		if len(some) == 0 || len(some) > 3 {
			t.Fatalf("%d completions when the descriptor was readable, at most 3 asked for", len(some))
		}
		for _, c := range some {
			if data, ok := under[c.Batch]; !ok || data != c.UserData || c.Err != nil {
				t.Errorf("%+v, not one of %v", c, under)
			}
			delete(under, c.Batch)
		}
	}
	if readable(t, here, 0) || len(here.Poll(1)) > 0 {
		t.Error("more completions than batches")
	}
}

// TestEnds: a peer that is gone ends a batch by its deadline or by Cancel, and closing the engine ends it too.
func TestEnds(t *testing.T) {
	there, here := open(t), open(t)
	_, segment := memory(t, there, "kv", 1<<12)
	ours, _ := memory(t, here, "local", 1<<12)
	target := connect(t, here, there, segment)
	there.Close()
	write := func(o capi.BatchOptions) capi.Handle {
		h, err := here.Submit(target, capi.OpWrite, []capi.Range{{Local: address(ours), Length: 64}}, o)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	write(capi.BatchOptions{Timeout: 20 * time.Millisecond, Tag: "request 7"})
	if c := finish(t, here); capi.CodeOf(c.Err) != capi.CodeDeadline || !strings.Contains(c.Err.Error(), "request 7") {
		t.Errorf("%v", c.Err)
	}
	h := write(capi.BatchOptions{Timeout: time.Hour})
	for range 2 { // the second time it may have ended
		if err := here.Cancel(h); err != nil {
			t.Error(err)
		}
	}
	if c := finish(t, here); capi.CodeOf(c.Err) != capi.CodeCanceled {
		t.Errorf("%v", c.Err)
	}
	if err := here.Cancel(h); err != nil {
		t.Errorf("a batch that has ended: %v", err)
	}
	if err := here.Cancel(h + 1000); capi.CodeOf(err) != capi.CodeHandle {
		t.Errorf("a batch that never was: %v", err)
	}
	write(capi.BatchOptions{Timeout: time.Hour})
	here.Close() // returns: that is the test
}

// TestHandles: what is closed is no more, and a segment's handle is not a target's.
func TestHandles(t *testing.T) {
	var table capi.Table
	h, err := table.Open(capi.Options{Rails: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	e, err := table.Engine(h)
	if err != nil {
		t.Fatal(err)
	}
	mem, segment := memory(t, e, "kv", 1<<12)
	target := connect(t, e, e, segment)
	one := []capi.Range{{Local: address(mem), Length: 1}}
	submit := func(to capi.Handle) error {
		_, err := e.Submit(to, capi.OpWrite, one, capi.BatchOptions{})
		return err
	}
	_, advertise := e.Advertise([]capi.Handle{target})
	gone := map[string]error{
		"a target as a segment": advertise, "a segment as a target": submit(segment), "target 0": submit(0),
		"an engine that is none": table.Close(segment),
	}
	if err := e.Disconnect(target); err != nil {
		t.Error(err)
	}
	gone["a batch to a target that is closed"], gone["a target that is closed"] = submit(target), e.Disconnect(target)
	if err := e.Deregister(segment); err != nil {
		t.Error(err)
	}
	gone["a segment that is closed"] = e.Deregister(segment)
	if err := table.Close(h); err != nil {
		t.Error(err)
	}
	gone["an engine that is closed"] = table.Close(h)
	_, gone["an engine to use"] = table.Engine(h)
	for name, err := range gone {
		if capi.CodeOf(err) != capi.CodeHandle {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPrivate: memory that peers must not reach is not advertised, and serves as the local side.
func TestPrivate(t *testing.T) {
	there, here := open(t), open(t)
	_, segment := memory(t, there, "kv", 1<<12)
	mem, release, err := transport.MapMemory(1 << 12)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = release() }()
	private, err := here.Register(capi.Memory{Address: unsafe.Pointer(&mem[0]), Length: 1 << 12, Name: "mine", Flags: capi.FlagPrivate})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := here.Advertise([]capi.Handle{private}); capi.CodeOf(err) != capi.CodeInvalid || !strings.Contains(err.Error(), `"mine" is private`) {
		t.Errorf("advertised: %v", err)
	}
	if _, err := here.Submit(connect(t, here, there, segment), capi.OpWrite, []capi.Range{{Local: address(mem), Length: 100}}, capi.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := finish(t, here); c.Err != nil {
		t.Error(c.Err)
	}
	if err := here.Deregister(private); err != nil {
		t.Error(err)
	}
}

// TestMessages: bytes come once, when the batch's are there, with the sender's name, after a WRITE and a READ; the
// descriptor is readable until all are taken, completions and messages.
func TestMessages(t *testing.T) {
	there := open(t)
	here, err := capi.Open(capi.Options{Rails: "127.0.0.1:0", Log: "off", Name: "prefill-0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.Close() })
	theirs, segment := memory(t, there, "kv", 1<<12)
	ours, _ := memory(t, here, "local", 1<<12)
	target := connect(t, here, there, segment)
	room := make([]byte, 16)
	for op, text := range []string{capi.OpWrite: "written", capi.OpRead: "read\x00it"} {
		copy(ours, text)
		if _, err := here.Submit(target, op, []capi.Range{{Local: address(ours), Length: 64}}, capi.BatchOptions{Message: []byte(text)}); err != nil {
			t.Fatal(err)
		}
		wait(t, there)
		if op == capi.OpWrite && !strings.HasPrefix(string(theirs), text) {
			t.Error("the message is there before its batch's bytes")
		}
		if m, err := there.Receive(room[:2]); capi.CodeOf(err) != capi.CodeSpace || len(m.Bytes) != len(text) {
			t.Errorf("room for two bytes: %+v, %v", m, err)
		}
		if !readable(t, there, 0) {
			t.Error("not readable with a message that waits")
		}
		m, err := there.Receive(room)
		if err != nil || string(room[:len(m.Bytes)]) != text || m.Sender != "prefill-0" || m.Segment != "kv" {
			t.Errorf("%+v, %v, want %q", m, err, text)
		}
		if m, err := there.Receive(room); m != nil || err != nil || readable(t, there, 0) {
			t.Errorf("again: %+v, %v", m, err)
		}
		if c := finish(t, here); c.Err != nil {
			t.Error(c.Err)
		}
	}
}

// TestFull: who does not poll is refused batches, and gets a completion of each that was not refused.
func TestFull(t *testing.T) {
	there, here := open(t), open(t)
	_, segment := memory(t, there, "kv", 1<<12)
	target := connect(t, here, there, segment)
	submit := func() error {
		_, err := here.Submit(target, capi.OpWrite, nil, capi.BatchOptions{})
		return err
	}
	const most = 1 << 16
	for range most {
		if err := submit(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := submit(); capi.CodeOf(err) != capi.CodeBusy || !strings.Contains(err.Error(), "65536 are under way or wait to be polled") {
			t.Errorf("a batch more: %v", err)
		}
	}
	if n := len(here.Poll(1)); n != 1 {
		t.Fatalf("%d completions", n)
	}
	if err := submit(); err != nil {
		t.Errorf("after a poll: %v", err)
	}
	if err := submit(); capi.CodeOf(err) != capi.CodeBusy {
		t.Errorf("full again: %v", err)
	}
	if n := len(here.Poll(2 * most)); n != most {
		t.Errorf("%d completions of %d batches", n, most)
	}
}

// TestFullMessages: who does not receive is not sent more than there is room for, in number and in bytes. Each sender knows:
// what its batch has not failed with comes once.
func TestFullMessages(t *testing.T) {
	for name, c := range map[string]struct{ bytes, most int }{
		"short": {8, 1 << 14},
		"long":  {64 << 10, 1 << 8},
	} {
		t.Run(name, func(t *testing.T) {
			there, here := open(t), open(t)
			_, segment := memory(t, there, "kv", 1<<12)
			target := connect(t, here, there, segment)
			send := func(n int) (sent, refused int) {
				for under := 0; sent+refused < n; {
					for ; under < 16 && sent+refused+under < n; under++ {
						if _, err := here.Submit(target, capi.OpWrite, nil, capi.BatchOptions{Message: make([]byte, c.bytes)}); err != nil {
							t.Fatal(err)
						}
					}
					wait(t, here)
					for _, done := range here.Poll(n) {
						under--
						switch capi.CodeOf(done.Err) {
						case capi.CodeOK:
							sent++
						case capi.CodeBusy:
							refused++
						default:
							t.Fatal(done.Err)
						}
					}
				}
				return sent, refused
			}
			receive := func() (n int) {
				for {
					m, err := there.Receive(make([]byte, c.bytes))
					if err != nil {
						t.Fatal(err)
					}
					if m == nil {
						return n
					}
					n++
				}
			}
			sent, refused := send(c.most + 20)
			if sent < c.most-1 || sent > c.most || refused != 20+c.most-sent { // a byte of each is the name's length
				t.Errorf("%d sent and %d refused, where %d wait at most", sent, refused, c.most)
			}
			if got := receive(); got != sent {
				t.Errorf("%d came of %d that were sent", got, sent)
			}
			if sent, refused := send(20); sent != 20 || refused != 0 || receive() != 20 {
				t.Errorf("all received: %d sent and %d refused", sent, refused)
			}
		})
	}
}
