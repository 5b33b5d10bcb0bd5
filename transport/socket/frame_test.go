package socket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	"kvferry/transport"
	"kvferry/transport/connection"
)

func TestFrameRoundTrip(t *testing.T) {
	h := hello{name: transport.Name{7}, lost: []transport.Secret{{1}, {2}, {3}}}
	if got, err := parseHello(h.append(nil)); err != nil || !reflect.DeepEqual(got, h) || len(h.append(nil)) != helloLen {
		t.Errorf("hello %+v, %v", got, err)
	}
	r := request{op: transport.Write, hasImm: true, count: maxCount, seq: 1 << 60, bytes: maxCount << 30, text: transport.MaxText}
	if got, err := parseRequest(r.append(nil)); err != nil || got != r || len(r.append(nil)) != requestLen {
		t.Errorf("request %+v, %v", got, err)
	}
	d := desc{key: 1<<64 - 1, offset: 1 << 63, length: 12}
	if got := parseDesc(d.append(nil)); got != d || len(d.append(nil)) != descLen {
		t.Errorf("descriptor %+v", got)
	}
	m := transport.Imm{Source: 1, Seq: 2, Floor: 3, Value: 4, Text: "text"}
	if got, behind := parseImm(appendImm(nil, &m, 7)); got != m || behind != 7 || len(appendImm(nil, &m, 7)) != immLen+4 {
		t.Errorf("immediate %+v", got)
	}
	a := response{typ: nak, code: codeBounds, index: 511, seq: 9, bytes: 1 << 40}
	if got, err := parseResponse(a.append(nil)); err != nil || got != a || len(a.append(nil)) != responseLen {
		t.Errorf("response %+v, %v", got, err)
	}
	if r.rest(false)+requestLen != maxHeader || maxHeader > streamBuffer {
		t.Errorf("the largest header is %d bytes, the buffer %d", r.rest(false)+requestLen, streamBuffer)
	}
	r.hasImm, r.text = false, 0
	if r.rest(true)+requestLen != maxReferences || maxReferences > referenceBuffer {
		t.Errorf("the largest header is %d bytes, the buffer %d", r.rest(true)+requestLen, referenceBuffer)
	}
	for c, want := range map[code]error{codeOK: nil, codeUnread: errUnread, codeProtocol: transport.ErrProtocol} {
		if err := parseWelcome(appendWelcome(nil, c)); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("welcome with code %d: %v", c, err)
		}
	}
}

// FuzzWelcome feeds an initiator's parser of the answer to its hello.
func FuzzWelcome(f *testing.F) {
	f.Add(appendWelcome(nil, codeOK))
	f.Add(appendWelcome(nil, codeUnread))
	f.Add(appendFull(nil, &connection.Full{Limit: 4096}))
	f.Add(appendFull(nil, &connection.Full{Limit: 7, OneHost: true, Fixed: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < welcomeLen {
			return
		}
		err := parseWelcome(b[:welcomeLen])
		var full *connection.Full
		if errors.As(err, &full) {
			if again := parseWelcome(appendFull(nil, full)); again.Error() != err.Error() {
				t.Errorf("%v is told as %v", err, again)
			}
		}
		if err == nil && b[8] != byte(codeOK) {
			t.Errorf("% x is a welcome", b[:welcomeLen])
		}
	})
}

// A reader is a source without readv.
type reader struct{ io.Reader }

func (r reader) readv(dst [][]byte, tail []byte) (int, error) {
	for _, b := range dst {
		if len(b) > 0 {
			tail = b
			break
		}
	}
	n, err := r.Read(tail)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (r reader) first(pool *sync.Pool) (*buffer, int, error) {
	b := pool.Get().(*buffer)
	n, err := r.readv(nil, b.mem)
	return b, n, err
}

func (reader) light(bool) {}

// However the bytes are cut into reads, they arrive in order.
func TestStream(t *testing.T) {
	want := make([]byte, 100_000)
	for i := range want {
		want[i] = byte(i * 7)
	}
	for name, src := range map[string]io.Reader{
		"whole": bytes.NewReader(want), "halves": iotest.HalfReader(bytes.NewReader(want)), "bytes": iotest.OneByteReader(bytes.NewReader(want)),
	} {
		s := newStream(reader{src}, false)
		var got []byte
		for i := 0; len(got) < len(want)-9000; i++ {
			b, err := s.next(1 + i%300)
			if err != nil {
				t.Fatal(name, err)
			}
			got = append(got, b...)
			x, y := make([]byte, i*13%5000), make([]byte, i%3)
			if err := s.scatter([][]byte{x, nil, y}); err != nil {
				t.Fatal(name, err)
			}
			got = append(append(got, x...), y...)
			if err := s.discard(int64(i % 50)); err != nil {
				t.Fatal(name, err)
			}
			got = append(got, want[len(got):len(got)+i%50]...)
		}
		if !bytes.Equal(got, want[:len(got)]) {
			t.Errorf("%s: bytes went astray", name)
		}
		if err := s.discard(1 << 20); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", name, err)
		}
	}
}

// drained is a connection whose peer reads and forgets everything.
var drained = sync.OnceValue(func() *net.TCPConn {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		panic(err)
	}
	peer, err := ln.Accept()
	if err != nil {
		panic(err)
	}
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	return c.(*net.TCPConn)
})

// A mapMemory is one piece of a peer's memory, at an address: the rest is not mapped.
type mapMemory struct {
	at  uint64
	mem []byte
}

func (m mapMemory) Copy(dst [][]byte, at []uint64) error {
	for i, b := range dst {
		from, n := at[i]-m.at, uint64(len(m.mem))
		if from > n || uint64(len(b)) > n-from {
			return errors.New("bad address")
		}
		copy(b, m.mem[from:])
	}
	return nil
}

// FuzzFrame feeds a target any bytes, as frames that carry bytes and as frames that
// carry addresses: it ends with an error, holds nothing, and never touches what lies
// around the region, writes outside of what is open to writes, or sends and lends what
// is not open to reads.
func FuzzFrame(f *testing.F) {
	const key, guard, size, half, there = 42, 64, 4096, 2048, 1 << 40
	const writable, readable = key + 10, key + 20 // windows of the first half; key opens the second
	write := frameBytesOf(request{count: 2, seq: 1, bytes: 300}, []desc{{key, 0, 200}, {key, half - 100, 100}}, bytes.Repeat([]byte{1}, 300))
	read := frameBytesOf(request{op: transport.Read, count: 1, seq: 2, bytes: half}, []desc{{key, 0, half}}, nil)
	imm := request{hasImm: true, count: 1, seq: 3}
	signal := appendImm(frameBytesOf(imm, []desc{{key, 0, 0}}, nil), &transport.Imm{Source: 1, Seq: 1}, 0)
	texted := appendImm(frameBytesOf(request{hasImm: true, count: 1, seq: 1, text: 4}, []desc{{key, 0, 0}}, nil), &transport.Imm{Source: 1, Seq: 1, Text: "text"}, 0)
	for _, b := range [][]byte{
		texted, texted[:len(texted)-1], write, append(write[:len(write):len(write)], read...), append(append(write[:len(write):len(write)], read...), signal...),
		frameBytesOf(request{count: 1, seq: 1, bytes: 10}, []desc{{key, half - 9, 10}}, make([]byte, 10)),
		frameBytesOf(request{count: 1, seq: 1, bytes: 10}, []desc{{key + 1, 0, 10}}, make([]byte, 10)),
		frameBytesOf(request{count: 1, seq: 1, bytes: 10}, []desc{{key, 1<<64 - 5, 10}}, make([]byte, 10)),
		frameBytesOf(request{count: 1, seq: 1, bytes: 1 << 30}, []desc{{key, 0, 1 << 30}}, nil),
		frameBytesOf(request{count: 4, seq: 1, bytes: 40}, []desc{{writable, 100, 10}, {writable, 195, 10}, {writable, 250, 10}, {readable, 500, 10}}, make([]byte, 40)),
		frameBytesOf(request{op: transport.Read, count: 4, seq: 1, bytes: 40}, []desc{{readable, 500, 10}, {readable, 595, 10}, {readable, 0, 10}, {writable, 100, 10}}, nil),
		[]byte("GET / HTTP/1.1\r\n\r\n and some more"), nil,
	} {
		f.Add(b, false)
		f.Add(b, true)
	}
	refer := func(at ...uint64) (b []byte) {
		for _, a := range at {
			b = binary.LittleEndian.AppendUint64(b, a)
		}
		return b
	}
	release := request{op: opRelease, seq: 2}
	f.Add(slices.Concat(
		frameBytesOf(request{count: 2, seq: 1, bytes: 300}, []desc{{key, 0, 200}, {key, half - 100, 100}}, refer(there, there+size-100)), read, release.append(nil), signal,
	), true)
	f.Add(frameBytesOf(request{count: 1, seq: 1, bytes: 10}, []desc{{key, 0, 10}}, refer(there+size-9)), true)
	f.Add(release.append(nil), true)
	poke := request{op: opPoke, bytes: 5}
	f.Add(slices.Concat(poke.append(nil), make([]byte, 5), write), false)
	f.Add(poke.append(nil), false)
	f.Fuzz(func(t *testing.T, b []byte, references bool) {
		mem := bytes.Repeat([]byte{0xa5}, guard+size+guard)
		own := mem[guard : guard+size : guard+size]
		open := func(op transport.Op, ranges ...transport.Range) *region {
			a, err := transport.NewAccess(op, ranges)
			if err != nil {
				t.Fatal(err)
			}
			return newRegion(own, a)
		}
		regs := map[transport.Key]*region{
			key:      newRegion(own[half:], transport.Whole(half)),
			writable: open(transport.Write, transport.Range{Offset: 100, Length: 100}, transport.Range{Offset: 300, Length: 1}),
			readable: open(transport.Read, transport.Range{Offset: 500, Length: 100}),
		}
		r := &Rail{regions: regions{byKey: regs}}
		s := &served{rail: r, c: drained(), in: newStream(reader{bytes.NewReader(b)}, references), answers: make(chan *answer, maxAnswers)}
		s.out, _ = newGather(drained())
		if references {
			s.peer = mapMemory{there, bytes.Repeat([]byte{1}, size)}
		}
		var sender sync.WaitGroup
		readAt := func(mem []byte) {
			if at := address(mem) - address(own); at < half && (at < 500 || at+uint64(len(mem)) > 600) || at+uint64(len(mem)) > size {
				t.Errorf("%d bytes at %d are given to be read", len(mem), at)
			}
		}
		sender.Go(func() {
			for a := range s.answers {
				for _, part := range a.parts[1:] {
					readAt(part)
				}
				if err := s.sendAnswer(a); err != nil {
					t.Error(err)
				}
				s.releaseHeld(a.held)
			}
		})
		err := s.take()
		close(s.answers)
		sender.Wait()
		s.settle()
		if err == nil {
			t.Error("the end of input is no error")
		}
		around := bytes.Repeat([]byte{0xa5}, guard)
		if !bytes.Equal(mem[:guard], around) || !bytes.Equal(mem[guard+size:], around) {
			t.Error("memory around the region was touched")
		}
		for i, b := range own[:half] {
			if b != 0xa5 && (i < 100 || i >= 200) && i != 300 {
				t.Errorf("byte %d was written", i)
			}
		}
		for key, g := range regs {
			if len(g.users) != 0 {
				t.Errorf("region %d is still held", key)
			}
		}
	})
}

// FuzzResponse feeds an initiator's parser.
func FuzzResponse(f *testing.F) {
	f.Add((&response{typ: ack, seq: 3}).append(nil))
	f.Add((&response{typ: data, seq: 1, bytes: 10}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < responseLen {
			return
		}
		r, err := parseResponse(b[:responseLen])
		if err == nil && !bytes.Equal(r.append(nil), b[:responseLen]) {
			t.Errorf("%+v does not print as it was read", r)
		}
	})
}

// FuzzHello feeds a target's parser of the first bytes of a connection.
func FuzzHello(f *testing.F) {
	h := hello{name: transport.Name{7}, lost: []transport.Secret{{1}, {2}}}
	f.Add(h.append(nil))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloLen {
			return
		}
		b = b[:helloLen]
		h, err := parseHello(b)
		if err != nil {
			return
		}
		again, err := parseHello(h.append(nil))
		if err != nil || !reflect.DeepEqual(again, h) {
			t.Errorf("%+v is read as %+v, %v", h, again, err)
		}
	})
}
