package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// tcp is a frame as the kernel hands it over: so much payload, in packets of size, with the
// sum of the pseudo-header only.
func tcp(payload, size int, flags byte) Frame {
	f := make(Frame, prefix+ethernet+20+32+payload)
	f[0] = needsSum
	if payload > size {
		f[1] = cutTCP4
		binary.NativeEndian.PutUint16(f[4:], uint16(size))
	}
	binary.NativeEndian.PutUint16(f[6:], ethernet+20)
	binary.NativeEndian.PutUint16(f[8:], 16)
	data := f[prefix:]
	data[12] = 8
	ip := data[ethernet:]
	ip[0], ip[8], ip[9] = 0x45, 64, protoTCP
	binary.BigEndian.PutUint16(ip[2:], uint16(20+32+payload))
	binary.BigEndian.PutUint16(ip[4:], 0xfffe)
	copy(ip[12:], []byte{10, 77, 0, 1, 10, 77, 0, 2})
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip[:20]))
	seg := ip[20:]
	binary.BigEndian.PutUint32(seg[4:], 0xffffff00)
	seg[12], seg[13] = 8<<4, flags
	binary.BigEndian.PutUint16(seg[16:], pseudo(ip, 32+payload))
	for i := range seg[32:] {
		seg[32+i] = byte(i * 7)
	}
	return f
}

// on wire checks a packet as a receiver does: lengths, both checksums. It returns the
// sequence number and the payload.
func onWire(t *testing.T, f Frame) (seq uint32, payload []byte, flags byte) {
	t.Helper()
	if f[1] != 0 {
		t.Fatalf("a packet is still to be cut: % x", f[:prefix])
	}
	f = append(Frame(nil), f...)
	f.seal()
	ip := f[prefix+ethernet:]
	if sum(0, ip[:20]) != 0xffff {
		t.Errorf("checksum of the IP header")
	}
	if n := int(binary.BigEndian.Uint16(ip[2:])); n != len(ip) {
		t.Errorf("IP length %d of %d bytes", n, len(ip))
	}
	if sum(uint32(pseudo(ip, len(ip)-20)), ip[20:]) != 0xffff {
		t.Errorf("checksum of TCP")
	}
	return binary.BigEndian.Uint32(ip[20+4:]), ip[20+32:], ip[20+13]
}

// TestCut: every way to cut a frame gives the same bytes of the stream, with headers that
// a receiver takes.
func TestCut(t *testing.T) {
	const size = 1448
	whole := tcp(10*size+100, size, flagPSH|flagFIN|flagCWR)
	before := append(Frame(nil), whole...)
	if n := whole.packets(); n != 11 {
		t.Fatalf("%d packets", n)
	}
	want := whole[prefix+ethernet+20+32:]
	for from := range 11 {
		for to := from + 1; to <= 11; to++ {
			piece := whole.cut(from, to)
			if n := piece.packets(); n != to-from {
				t.Fatalf("%d to %d: %d packets", from, to, n)
			}
			for i := range to - from {
				seq, payload, flags := onWire(t, piece.cut(i, i+1))
				at := (from + i) * size
				if seq != uint32(0xffffff00+at) || !bytes.Equal(payload, want[at:min(at+size, len(want))]) {
					t.Fatalf("%d to %d, packet %d: number %#x with %d bytes", from, to, i, seq, len(payload))
				}
				if first, last := from+i == 0, from+i == 10; flags&flagCWR != 0 != first || flags&(flagPSH|flagFIN) != 0 != last {
					t.Fatalf("packet %d has flags %#x", from+i, flags)
				}
			}
		}
	}
	if !bytes.Equal(whole, before) {
		t.Error("cutting changed the frame")
	}
}

// TestSpoil: one bit is wrong, and a receiver sees it.
func TestSpoil(t *testing.T) {
	luck := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		f := tcp(1000, 1448, 0)
		f.seal()
		good := append(Frame(nil), f...)
		f.spoil(luck.Uint64())
		wrong := 0
		for i := range f {
			for d := f[i] ^ good[i]; d != 0; d &= d - 1 {
				wrong++
			}
		}
		ip := f[prefix+ethernet:]
		if wrong != 1 || sum(0, ip[:20]) == 0xffff && sum(uint32(pseudo(ip, len(ip)-20)), ip[20:]) == 0xffff {
			t.Fatalf("%d bits are wrong, and the checksums right", wrong)
		}
	}
}

// FuzzFrame: what is no frame of TCP is one packet, and nothing panics.
func FuzzFrame(f *testing.F) {
	f.Add([]byte(tcp(5000, 1448, 0)), uint64(3))
	f.Add([]byte(tcp(500, 1448, 0)), uint64(1))
	f.Add(make([]byte, prefix+ethernet), uint64(0))
	f.Fuzz(func(t *testing.T, data []byte, at uint64) {
		if len(data) < prefix+ethernet || len(data) > mostFrame {
			return
		}
		frame := Frame(data)
		n := frame.packets()
		if n < 1 {
			t.Fatalf("%d packets", n)
		}
		from := int(at % uint64(n))
		piece := frame.cut(from, from+1)
		if n > 1 && piece.packets() != 1 {
			t.Fatalf("one packet of %d is %d", n, piece.packets())
		}
		piece.seal()
		piece.spoil(at)
		line := NewLine(at)
		line.Change(Conditions{Delay: 2, Jitter: 1, Loss: 0.2, Reorder: 0.2, Duplicate: 0.2, Corrupt: 0.2})
		line.Take(0, frame)
		for {
			if _, ok := line.Due(10); !ok {
				break
			}
		}
	})
}
