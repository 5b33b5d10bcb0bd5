package socket

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// A tap passes connections to a rail on and keeps what goes by.
type tap struct {
	ln net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	heard []byte
}

func newTap(t *testing.T, to string) *tap {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	x := &tap{ln: ln}
	x.wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				x.wg.Go(func() {
					_, _ = io.Copy(io.MultiWriter(way[0], x), way[1])
					way[0].Close()
				})
			}
		}
	})
	return x
}

func (x *tap) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.heard = append(x.heard, b...)
	return len(b), nil
}

// Whatever is seen of a connection, it does not end it: not said as the secret of a
// lost connection, nor in a fence, by a stranger who has a key besides.
func TestOverheard(t *testing.T) {
	transporttest.CheckLeaks(t)
	ini := newEngine(t, newRail(t, "127.0.0.1:0"))
	defer ini.Close()
	served := newRail(t, "127.0.0.1:0")
	owner := newEngine(t, served)
	defer owner.Close()
	wire := newTap(t, served.Addr())
	defer wire.wg.Wait()
	defer wire.ln.Close()
	defer ini.Close() // before what waits for its connection
	local, err := ini.RegisterLocal("local", bytes.Repeat([]byte{5}, 1000), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	remote, err := owner.Register("remote", make([]byte, 1000), "cpu:0")
	if err != nil {
		t.Fatal(err)
	}
	info := remote.Info()
	key := info.Rails[0].Key
	info.Rails[0].Addr = wire.ln.Addr().String()
	tgt, err := ini.Open(info)
	if err != nil {
		t.Fatal(err)
	}
	move := func() {
		t.Helper()
		b := ini.Submit(tgt, []transport.Request{{Local: local.Bytes()}}, transport.BatchOptions{Timeout: 10 * time.Second, Imm: 1, HasImm: true})
		if <-b.Done(); b.Err() != nil {
			t.Error(b.Err())
		}
	}
	move()
	wire.mu.Lock()
	heard := bytes.Clone(wire.heard)
	wire.mu.Unlock()
	heard = heard[:min(len(heard), 600)] // hello, welcome, descriptors, the first bytes
	if len(heard) < helloLen {
		t.Fatalf("%d bytes were heard", len(heard))
	}

	said := repeat(t, served, key, heard)
	move()
	if st := ini.Rails()[0]; st.Dials != 1 || st.Downs != 0 {
		t.Errorf("with %d things that were overheard, a stranger has ended the connection: %+v", said, st)
	}
}

// repeat is a stranger with a key, who says every 16 bytes of what was heard as the secret
// of a lost connection, and in a fence. It returns how many that were, when the target has
// done with all of them.
func repeat(t *testing.T, served *Rail, key transport.Key, heard []byte) (said int) {
	t.Helper()
	stranger, err := net.Dial("tcp", served.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	first := hello{name: nameOf(1 << 12)}
	if _, err := stranger.Write(first.append(nil)); err != nil {
		t.Fatal(err)
	}
	for at := 0; at+16 <= len(heard); at += maxLost {
		h := hello{name: nameOf(at)}
		for i := at; i < at+maxLost && i+16 <= len(heard); i++ {
			secret := transport.Secret(heard[i : i+16])
			h.lost = append(h.lost, secret)
			said++
			r := request{hasImm: true, count: 1, seq: uint64(said)}
			imm := transport.Imm{Seq: binary.LittleEndian.Uint64(secret[:]), Value: binary.LittleEndian.Uint64(secret[8:])}
			if _, err := stranger.Write(appendImm(frameBytesOf(r, []desc{{key, 0, 0}}, nil), &imm, 0)); err != nil {
				t.Fatal(err)
			}
		}
		p := rawPeer{t: t, rail: served}
		p.connect(&h)
		p.c.Close()
	}
	// The fences have been carried out when what comes after them is answered.
	_ = stranger.SetDeadline(time.Now().Add(10 * time.Second))
	r := request{op: transport.Read, count: 1, seq: uint64(said) + 1, bytes: 1}
	if _, err := stranger.Write(frameBytesOf(r, []desc{{key, 0, 1}}, nil)); err != nil {
		t.Fatal(err)
	}
	welcome := make([]byte, welcomeLen)
	if _, err := io.ReadFull(stranger, welcome); err != nil {
		t.Fatal(err)
	}
	for typ := ack; typ != data; {
		b := make([]byte, responseLen)
		if _, err := io.ReadFull(stranger, b); err != nil {
			t.Fatal(err)
		}
		a, err := parseResponse(b)
		if err != nil {
			t.Fatal(err)
		}
		typ = a.typ
	}
	return said
}
