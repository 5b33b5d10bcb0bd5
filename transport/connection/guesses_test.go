package connection

import (
	"errors"
	"testing"
	"time"

	"kvferry/transport"
)

// TestGuesses: many slices with the key of a closed window are late, and so are as many keys as may be under way; more of
// them at a time are guesses.
func TestGuesses(t *testing.T) {
	now := time.Unix(1000, 0)
	var late Guesses
	for range 1_000_000 {
		if err := late.Refused(7, now); err != nil {
			t.Fatal(err)
		}
	}
	var g Guesses
	next := transport.Key(1)
	use := func(n int) (refused int) {
		for range n {
			if err := g.Refused(next, now); errors.Is(err, transport.ErrProtocol) {
				refused++
			}
			next++
		}
		return refused
	}
	if n := use(QueueSlices); n != 0 {
		t.Errorf("%d of a queue's keys are too many", n)
	}
	if n := use(10); n != 10 {
		t.Errorf("%d of 10 keys more are too many", n)
	}
	for range 3600 { // an hour in which 50 windows a second are closed under the peer
		if now = now.Add(time.Second); use(50) != 0 && now.Sub(time.Unix(1000, 0)) > time.Minute {
			t.Fatal("closed windows are taken for guesses")
		}
	}
}
