package socket

import (
	"io"
	"strings"
	"testing"

	"kvferry/transport"
)

// TestGuessedKeys: who uses thousands of keys that open nothing is cut off, and the log names it. As many slices with the
// key of a window that was closed are refused, and no more.
func TestGuessedKeys(t *testing.T) {
	frame := func(seq uint64, key func(i int) transport.Key) []byte {
		descs := make([]desc, maxCount)
		for i := range descs {
			descs[i] = desc{key: key(i), length: 1}
		}
		return frameBytesOf(request{op: transport.Read, count: maxCount, seq: seq, bytes: maxCount}, descs, nil)
	}
	const frames = 20 // of 512 slices
	late := newRawPeer(t)
	late.connect(&hello{name: nameOf(1)})
	gone := transport.NewKey()
	for seq := range uint64(frames) {
		late.send(frame(seq+1, func(int) transport.Key { return gone }))
		naks := make([]byte, (maxCount+1)*responseLen)
		if _, err := io.ReadFull(late.c, naks); err != nil {
			t.Fatalf("frame %d of late slices: %v", seq, err)
		}
	}
	p := newRawPeer(t)
	p.connect(&hello{name: nameOf(2)})
	answered := 0
	for seq := range uint64(frames) {
		if _, err := p.c.Write(frame(seq+1, func(int) transport.Key { return transport.NewKey() })); err != nil {
			break
		}
		naks := make([]byte, (maxCount+1)*responseLen)
		if _, err := io.ReadFull(p.c, naks); err != nil {
			break
		}
		answered++
	}
	if answered < 7 || answered > 9 {
		t.Errorf("%d frames of %d guesses were answered", answered, maxCount)
	}
	if err := p.rail.Close(); err != nil { // waits for the line
		t.Error(err)
	}
	if text := p.log.String(); strings.Count(text, "does it guess") != 1 || !strings.Contains(text, p.c.LocalAddr().String()) {
		t.Errorf("the log: %s", text)
	}
}
