package socket

import "sync"

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
