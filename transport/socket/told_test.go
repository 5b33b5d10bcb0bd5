package socket

import (
	"fmt"
	"strings"
	"testing"
)

// However many different things happen, a bounded number is remembered: the latest.
func TestTold(t *testing.T) {
	var told Told
	text := func(pid int) string { return fmt.Sprintf("process %d: not permitted", pid) }
	for pid := range 10_000 {
		if !told.First(text(pid)) || told.First(text(pid)) {
			t.Fatalf("process %d: first once, and not again", pid)
		}
		if len(told.texts) > maxTold {
			t.Fatalf("%d texts are kept", len(told.texts))
		}
	}
	if told.First(text(10_000-maxTold)) || !told.First(text(10_000-maxTold-1)) {
		t.Error("not the latest are remembered")
	}
}

// TestStrangersAreALine: those who connect to a rail and say something else, again and
// again, have a line together.
func TestStrangersAreALine(t *testing.T) {
	p := newRawPeer(t)
	for range 50 {
		p.connect(nil)
		p.send([]byte("GET / HTTP/1.1\r\n\r\nand so on, as long as a hello of a rail would be, and more"))
		p.end()
	}
	if err := p.rail.Close(); err != nil { // its log is complete
		t.Error(err)
	}
	if n := strings.Count(p.log.String(), "connection dropped"); n != 1 {
		t.Errorf("%d lines:\n%s", n, p.log.String())
	}
}
