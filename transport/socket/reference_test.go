package socket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"kvferry/internal/clock/clocktest"
	"kvferry/transport"
	"kvferry/transport/connection"
	"kvferry/transport/transporttest"
)

// rawAddress is where a raw peer of a rail of references says its memory is.
const rawAddress = 1 << 40

// newReferrer is a raw peer that has said hello. Its memory begins with its probe.
func newReferrer(t *testing.T) *rawPeer {
	t.Helper()
	p := &rawPeer{t: t, log: &clocktest.Log{}, mem: make([]byte, 1<<16)}
	own := bytes.Repeat([]byte{7}, 4096)
	p.rail = newRailWith(t, "127.0.0.1:0", Config{
		Logger: slog.New(slog.NewTextHandler(p.log, nil)),
		Attach: func(Conn) (Memory, error) { return mapMemory{rawAddress, own}, nil },
	})
	var err error
	if p.key, err = p.rail.Register(p.mem, transport.Whole(int64(len(p.mem)))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.c.Close()
		if err := p.rail.Close(); err != nil {
			t.Error(err)
		}
	})
	p.connect(nil)
	h := hello{name: transport.Name{1}}
	p.send(append(binary.LittleEndian.AppendUint64(h.append(nil), rawAddress), own[:nonceLen]...))
	var w [welcomeLen + probeLen]byte
	if _, err := io.ReadFull(p.c, w[:]); err != nil || parseWelcome(w[:]) != nil {
		t.Fatalf("welcome % x: %v", w, err)
	}
	return p
}

// Whatever a peer says of its memory or gives back, the target's other memory is as
// it was, and nothing is lent any more when the connection has ended.
func TestReferencesRefuseNoise(t *testing.T) {
	release := func(seq uint64) []byte {
		r := request{op: opRelease, seq: seq}
		return r.append(nil)
	}
	write := func(p *rawPeer, at uint64, n uint64) []byte {
		r := request{count: 1, seq: 1, bytes: int64(n)}
		return frameBytesOf(r, []desc{{p.key, 0, n}}, binary.LittleEndian.AppendUint64(nil, at))
	}
	read := func(p *rawPeer, seq uint64) []byte {
		return frameBytesOf(request{op: transport.Read, count: 1, seq: seq, bytes: 10}, []desc{{p.key, 0, 10}}, nil)
	}
	for name, c := range map[string]struct {
		send func(p *rawPeer) []byte
		log  string
	}{
		"release of nothing":   {func(*rawPeer) []byte { return release(1) }, "is released"},
		"release of the next":  {func(p *rawPeer) []byte { return append(read(p, 1), release(2)...) }, "is released"},
		"release of the last":  {func(p *rawPeer) []byte { return slices.Concat(read(p, 1), release(1), release(1)) }, "is released"},
		"release with a count": {func(*rawPeer) []byte { r := request{op: opRelease, seq: 1, count: 1}; return r.append(nil) }, "release"},
		"memory not mapped":    {func(p *rawPeer) []byte { return write(p, 8, 10) }, "bad address"},
		"beyond the memory":    {func(p *rawPeer) []byte { return write(p, rawAddress+4096-9, 10) }, "bad address"},
		"never released": {func(p *rawPeer) (b []byte) {
			for i := range uint64(connection.QueueSlices + 1) {
				b = append(b, read(p, i+1)...)
			}
			return b
		}, "not released"},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.CheckLeaks(t)
			p := newReferrer(t)
			go func() { _, _ = p.c.Write(c.send(p)) }() // the target may end it in the middle
			p.end()
			p.quiet()
			if g := p.rail.regions.get(p.key); len(g.users) != 0 {
				t.Error("memory is still lent")
			}
			if err := p.rail.Close(); err != nil { // its log is complete
				t.Error(err)
			}
			if !strings.Contains(p.log.String(), "connection dropped") || !strings.Contains(p.log.String(), c.log) {
				t.Errorf("log: %s", p.log.String())
			}
			if !bytes.Equal(p.mem, make([]byte, len(p.mem))) {
				t.Error("memory was touched")
			}
		})
	}
}

// A rail whose peer's memory cannot be read says so, at both ends.
func TestUnreadable(t *testing.T) {
	transporttest.CheckLeaks(t)
	refused := errors.New("operation not permitted")
	refuse := func(Conn) (Memory, error) { return nil, refused }
	var no *Rail
	read := func(Conn) (Memory, error) {
		return mapMemory{binary.LittleEndian.Uint64(no.probe.append(nil)), no.probe.append(nil)[8:]}, nil
	}
	log := &clocktest.Log{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	no = newRailWith(t, "127.0.0.1:0", Config{Attach: refuse, Logger: logger})
	yes := newRailWith(t, "127.0.0.1:0", Config{Attach: read, Logger: logger})
	defer yes.Close()
	if _, err := yes.Dial(t.Context(), no.Addr()); !errors.Is(err, transport.ErrUnreachable) || !errors.Is(err, errUnread) {
		t.Errorf("the target cannot: %v", err)
	}
	if _, err := no.Dial(t.Context(), yes.Addr()); !errors.Is(err, transport.ErrUnreachable) || !errors.Is(err, errAttach) {
		t.Errorf("the initiator cannot: %v", err)
	}
	if err := no.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "connection dropped") || !strings.Contains(log.String(), refused.Error()) {
		t.Errorf("log: %s", log.String())
	}
}
