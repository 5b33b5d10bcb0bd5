package shm

import (
	"strings"
	"sync/atomic"
	"testing"

	"kvferry/transport"
)

// TestText: a text stands beside its immediate, and one that is said to be longer than there is room for is no longer
// than that.
func TestText(t *testing.T) {
	available(t)
	c, err := newControl()
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for n := range uint32(3 * ringLen) {
		m := transport.Imm{Source: 1, Seq: uint64(n), Text: strings.Repeat("x", int(n)*transport.MaxText/(3*ringLen-1))}
		c.put(n, 7, m)
		if key, got := c.take(n); key != 7 || got != m {
			t.Errorf("immediate %d: %+v", n, got)
		}
	}
	atomic.StoreUint64(&c.entry(ringLen - 1)[ringText], 1<<63)
	if _, got := c.take(ringLen - 1); len(got.Text) != transport.MaxText {
		t.Errorf("a text of 1<<63 bytes is read as %d", len(got.Text))
	}
}
