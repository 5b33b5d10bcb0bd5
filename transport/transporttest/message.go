package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"kvferry/transport"
)

// This file is the part of the contract that is about messages.

// testTexts: the text of an immediate comes as it was posted, of each length, between others without.
func testTexts(t *testing.T, make Factory) {
	x := newBench(t, make, 1<<16)
	defer x.close()
	text := bytesOf(transport.MaxText)
	fill(text, 1)
	const n = 300
	c := newTally(t)
	var slices []*transport.Slice
	want := map[transport.Imm]bool{}
	for i := range n {
		s := transport.NewSlice(transport.Write, x.src[:i%2*64], x.key, 0, c.done)
		long := []int{0, 1, 7, 8, 9, 100, transport.MaxText - 1, transport.MaxText}[i%8]
		s.HasImm, s.Imm = true, transport.Imm{Source: 1, Seq: uint64(i), Value: uint64(i), Text: string(text[:long])}
		want[s.Imm] = true
		slices = append(slices, s)
	}
	if got := x.post(c, slices); got != n {
		t.Fatalf("posted %d of %d", got, n)
	}
	c.wait(n)
	for i, s := range slices {
		if err := c.err(s); err != nil {
			t.Fatalf("slice %d: %v", i, err)
		}
		m := <-x.imms
		if !want[m] {
			t.Fatalf("an immediate came as %+v", m)
		}
		delete(want, m)
	}
}

// An inbox collects an engine's messages.
type inbox struct {
	t    *testing.T
	mu   sync.Mutex
	full bool
	came map[string]int // sender and bytes
	last transport.Message
}

func (b *inbox) take(m transport.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came[m.Sender+"\x00"+string(m.Bytes)]++
	b.last = m
}

func (b *inbox) hasRoom(int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.full
}

func (b *inbox) fill(full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full = full
}

func (b *inbox) total() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.came {
		n += k
	}
	return n
}

// testMessages: a message comes once, with its sender's name, after a WRITE and a READ, alone, empty, long, over
// a key that may only read, and from several engines at once.
func testMessages(t *testing.T, factory Factory) {
	const initiators, each = 4, 50
	quiet := slog.New(slog.DiscardHandler)
	in := &inbox{t: t, came: make(map[string]int)}
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := factory(t)
	dst := memoryOf(t, r, 1<<16)
	b, err := transport.New(transport.Config{Rails: []transport.Rail{r}, Logger: quiet, OnMessage: in.take, HasRoom: in.hasRoom})
	fail(err)
	defer b.Close()
	remote, err := b.Register("dst", dst, "cpu:0")
	fail(err)
	readable, err := remote.Window("read", transport.Read, []transport.Range{{Offset: 0, Length: 4096}})
	fail(err)
	type side struct {
		e       *transport.Engine
		to, win *transport.Target
		src     []byte
	}
	var sides []side
	for i := range initiators {
		s := side{src: bytesOf(1 << 16)}
		s.e, err = transport.New(transport.Config{Rails: []transport.Rail{factory(t)}, Logger: quiet, Name: fmt.Sprintf("node-%d", i)})
		fail(err)
		defer s.e.Close()
		_, err = s.e.RegisterLocal("src", s.src, "cpu:0")
		fail(err)
		s.to, err = s.e.Open(remote.Info())
		fail(err)
		s.win, err = s.e.Open(readable.Info())
		fail(err)
		sides = append(sides, s)
	}
	s := sides[0]
	send := func(to *transport.Target, reqs []transport.Request, text []byte) error {
		batch := s.e.Submit(to, reqs, transport.BatchOptions{Message: text, Timeout: patience})
		<-batch.Done()
		return batch.Err()
	}
	long := bytesOf(transport.MaxMessage)
	fill(long, 3)
	write := []transport.Request{{Op: transport.Write, Local: s.src[:4096]}}
	read := []transport.Request{{Op: transport.Read, Local: s.src[:4096]}}
	for _, c := range []struct {
		name string
		to   *transport.Target
		reqs []transport.Request
		text []byte
	}{
		{"WRITE", s.to, write, []byte("written")},
		{"READ", s.to, read, []byte("read")},
		{"alone", s.to, nil, []byte("alone")},
		{"empty", s.to, nil, []byte{}},
		{"empty after WRITE", s.to, write, []byte{}},
		{"one immediate", s.to, write, long[:transport.MaxText-1-len("node-0")]},
		{"two immediates", s.to, write, long[:transport.MaxText-len("node-0")]},
		{"longest after WRITE", s.to, write, long},
		{"longest after READ", s.to, read, long},
		{"longest alone", s.to, nil, long},
		{"READ with a key to read", s.win, read, []byte("window")},
	} {
		fill(s.src, 9)
		before := in.total()
		text := bytes.Clone(c.text)
		if err := send(c.to, c.reqs, text); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n := in.total() - before; n != 1 || in.last.Sender != "node-0" || !bytes.Equal(in.last.Bytes, c.text) || in.last.Bytes == nil {
			t.Errorf("%s: %d messages came, the last of %d bytes from %q", c.name, n, len(in.last.Bytes), in.last.Sender)
		}
		if want := map[bool]string{true: "read", false: "dst"}[c.to == s.win]; in.last.Segment != want {
			t.Errorf("%s: it came with %q", c.name, in.last.Segment)
		}
	}
	before := in.total()
	if err := send(s.to, write, nil); err != nil || in.total() != before {
		t.Errorf("no message: %v, %d came", err, in.total()-before)
	}
	if err := send(s.to, write, append(long, 0)); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a message that is too long: %v", err)
	}
	both := s.e.Submit(s.to, write, transport.BatchOptions{Message: long, HasImm: true})
	if err := both.Err(); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a message and an immediate: %v", err)
	}
	if bad := send(s.to, []transport.Request{{Op: transport.Write, Local: s.src[:10], Offset: 1 << 40}}, long); bad == nil || in.total() != before {
		t.Errorf("after a batch that failed with %v, %d messages came", bad, in.total()-before)
	}

	// Where there is no room for a message its batch fails, with its bytes there, and the next one finds room again.
	in.fill(true)
	for i, text := range [][]byte{[]byte("short"), long} {
		fill(s.src, uint64(20+i))
		if err := send(s.to, write, text); !errors.Is(err, transport.ErrBusy) || in.total() != before || !bytes.Equal(dst[:4096], s.src[:4096]) {
			t.Errorf("no room for %d bytes: %v, %d messages came", len(text), err, in.total()-before)
		}
	}
	if err := send(s.to, write, nil); err != nil {
		t.Errorf("no message, where there is no room for one: %v", err)
	}
	in.fill(false)
	if err := send(s.to, nil, long); err != nil || in.total() != before+1 {
		t.Errorf("room again: %v, %d messages came", err, in.total()-before)
	}

	clear(in.came)
	var batches []*transport.Batch
	want := map[string]bool{}
	for i := range each {
		for k, s := range sides {
			text := fmt.Sprintf("%d %s", i, strings.Repeat("x", i*i%1500))
			want[fmt.Sprintf("node-%d\x00%s", k, text)] = true
			// Each has bytes of its own: several connections may carry them at once.
			from, to := s.src[i*128:][:128], s.src[1<<15+i*128:][:128]
			reqs := [][]transport.Request{
				nil,
				{{Op: transport.Write, Local: from, Offset: int64(i*initiators+k) * 128}},
				{{Op: transport.Read, Local: to, Offset: 1 << 15}},
			}[i%3]
			batches = append(batches, s.e.Submit(s.to, reqs, transport.BatchOptions{Message: []byte(text), Timeout: patience}))
		}
	}
	for _, batch := range batches {
		<-batch.Done()
		if err := batch.Err(); err != nil {
			t.Error(err)
		}
	}
	for text := range want {
		if in.came[text] != 1 {
			t.Errorf("%.20q came %d times", text, in.came[text])
		}
	}
	if len(in.came) != len(want) {
		t.Errorf("%d different messages came, not %d", len(in.came), len(want))
	}
}

// testHostileMessages: what is no part of a message is refused, alone, and so is the last part of one of which others
// have not come, and a number that comes with a key which may not write.
func testHostileMessages(t *testing.T, factory Factory) {
	quiet := slog.New(slog.DiscardHandler)
	in := &inbox{t: t, came: make(map[string]int)}
	there, here := factory(t), factory(t)
	mem := memoryOf(t, there, 4096)
	b, err := transport.New(transport.Config{Rails: []transport.Rail{there}, Logger: quiet, OnMessage: in.take, OnImmediate: func(transport.Immediate) {
		t.Error("an immediate with a key to read")
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	here.HandleImmediates(func(transport.Key, transport.Imm) error { return nil })
	defer here.Close()
	remote, err := b.RegisterLocal("dst", mem, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	window, err := remote.Window("read", transport.Read, []transport.Range{{Offset: 0, Length: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	key := window.Info().Rails[0].Key
	x := &bench{t: t, ep: dial(t, here, there.Addr())}
	full := strings.Repeat("t", transport.MaxText)
	for i, c := range []struct {
		name string
		m    transport.Imm
		want error
	}{
		{"a number", transport.Imm{}, transport.ErrAccess},
		{"beyond its end", transport.Imm{Value: 1<<32 | 1, Text: "t"}, transport.ErrBounds},
		{"too long", transport.Imm{Value: 1 << 63, Text: full}, transport.ErrBounds},
		{"from between two places", transport.Imm{Value: 5<<32 | 1, Text: "text"}, transport.ErrBounds},
		{"a short part", transport.Imm{Value: 600 << 32, Text: "text"}, transport.ErrBounds},
		{"a name longer than all", transport.Imm{Value: 4 << 32, Text: "text"}, transport.ErrBounds},
		{"the last alone", transport.Imm{Value: (transport.MaxText+1)<<32 | transport.MaxText, Text: "t"}, transport.ErrBusy},
		{"a message", transport.Imm{Value: 4 << 32, Text: "\x01nab"}, nil},
	} {
		c.m.Source, c.m.Seq = 1, uint64(i)
		tally := newTally(t)
		s := transport.NewSlice(transport.Write, nil, key, 0, tally.done)
		s.HasImm, s.Imm = true, c.m
		x.post(tally, []*transport.Slice{s})
		tally.wait(1)
		if err := tally.err(s); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if in.came["n\x00ab"] != 1 || in.total() != 1 {
		t.Errorf("the message came %d times, with %d others", in.came["n\x00ab"], in.total()-1)
	}
}

// testCutMessages ends the connection after each slice of a batch with a message: it comes once.
func testCutMessages(t *testing.T, factory Factory) {
	quiet := slog.New(slog.DiscardHandler)
	in := &inbox{t: t, came: make(map[string]int)}
	there, here := factory(t), factory(t)
	cut := &cutting{Rail: here, peer: there}
	b, err := transport.New(transport.Config{Rails: []transport.Rail{there}, Logger: quiet, OnMessage: in.take})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	a, err := transport.New(transport.Config{Rails: []transport.Rail{cut}, Logger: quiet, Name: "cut"})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	mem, src := memoryOf(t, there, 1<<16), bytesOf(1<<16)
	remote, err := b.Register("dst", mem, "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.RegisterLocal("src", src, "cpu:0"); err != nil {
		t.Fatal(err)
	}
	to, err := a.Open(remote.Info())
	if err != nil {
		t.Fatal(err)
	}
	sent := 0
	for i := range 12 {
		reqs := [][]transport.Request{nil, {{Op: transport.Write, Local: src[:4096]}}, {{Op: transport.Read, Local: src[4096:8192]}}}[i%3]
		for at := int64(0); ; at++ { // until all slices have been the one
			text := fmt.Sprintf("%d %s", sent, strings.Repeat("y", i/3*2000))
			before := cut.cuts.Load()
			cut.after.Store(at)
			batch := a.Submit(to, reqs, transport.BatchOptions{Message: []byte(text), Timeout: 2 * patience})
			select {
			case <-batch.Done():
			case <-time.After(patience):
				t.Fatalf("cut after %d slices of batch %d: it does not end", at, i)
			}
			sent++
			if err := batch.Err(); err != nil {
				t.Fatalf("cut after %d slices of batch %d: %v", at, i, err)
			}
			if got := in.came["cut\x00"+text]; got != 1 || in.total() != sent {
				t.Fatalf("cut after %d slices of batch %d: the message came %d times", at, i, got)
			}
			if cut.cuts.Load() == before {
				break
			}
		}
	}
	if cut.cuts.Load() < 12 {
		t.Errorf("only %d connections were cut", cut.cuts.Load())
	}
}
