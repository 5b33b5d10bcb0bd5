package socket

import (
	"fmt"
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
