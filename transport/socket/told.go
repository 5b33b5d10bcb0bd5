package socket

import (
	"sync"
	"time"
)

// maxTold is how many texts a Told remembers: more than a person reads at once.
const maxTold = 256

// Told remembers what a log was told, so that what happens again and again, as when
// somebody tries once a second, is a line once. It remembers the latest texts only: they
// name peers, of which there may be any number in time. The zero value has been told
// nothing.
type Told struct {
	mu    sync.Mutex
	texts map[string]struct{}
	ring  [maxTold]string // in order; the one at next is the oldest
	next  int
}

// First reports whether the text is new, and remembers it.
func (t *Told) First(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.texts[text]; again {
		return false
	}
	if t.texts == nil {
		t.texts = make(map[string]struct{})
	}
	if len(t.texts) == maxTold {
		delete(t.texts, t.ring[t.next])
	}
	t.texts[text] = struct{}{}
	t.ring[t.next] = text
	t.next = (t.next + 1) % maxTold
	return true
}

// Sparse lets a line through every so often, and counts what it held back. Anybody may
// connect to a rail, say something else, and do it again a thousand times a second.
type Sparse struct {
	mu   sync.Mutex
	at   time.Time // of the last line
	held int
}

// sparseEvery is how often a line goes through.
const sparseEvery = 10 * time.Second

// Line reports whether a line may be written now, and how many were not since the last.
func (s *Sparse) Line(now time.Time) (held int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.at.IsZero() && now.Sub(s.at) < sparseEvery {
		s.held++
		return 0, false
	}
	held = s.held
	s.at, s.held = now, 0
	return held, true
}
