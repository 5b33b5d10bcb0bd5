package capi

import (
	"fmt"
	"os"
	"time"

	"kvferry/transport"
)

// What waits for a caller that does not take it is bounded: a batch more is refused by Submit, and a peer's message by its
// batch, which fails at the peer.
const (
	mostBatches  = 1 << 16  // under way, and ended but not polled
	mostMessages = 1 << 14  // not received
	mostWaiting  = 16 << 20 // bytes of them
)

// A Completion says how a batch ended.
type Completion struct {
	Batch    Handle
	UserData uint64
	Err      error
	Bytes    int64         // of its ranges
	Elapsed  time.Duration // from Submit to its end
}

// end takes a batch that has ended, on whatever goroutine that was.
func (e *Engine) end(h Handle, userData uint64, b *transport.Batch) {
	c := Completion{Batch: h, UserData: userData, Err: b.Err(), Bytes: b.Bytes(), Elapsed: b.Completed() - b.Posted()}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.batches, h)
	e.ended = append(e.ended, c)
	e.ring()
}

// Poll takes at most so many completions, oldest first. It does not wait.
func (e *Engine) Poll(most int) []Completion {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(most, len(e.ended))
	taken := e.ended[:n:n]
	e.ended = e.ended[n:]
	if len(e.ended) == 0 {
		e.ended = nil
	}
	e.ring()
	return taken
}

// hasRoom says whether a message of a peer's can wait here.
func (e *Engine) hasRoom(bytes int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.messages) < mostMessages && e.waiting+bytes <= mostWaiting
}

// deliver takes a message of a peer's, on whatever goroutine it came. Those that come at the same time
// may be a few more than there is room for.
func (e *Engine) deliver(m transport.Message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.messages = append(e.messages, &m)
	e.waiting += len(m.Bytes)
	e.ring()
}

// Receive takes the oldest message and copies its bytes, or says which it is and ErrSpace if there is no room. It
// is nil if there is none.
func (e *Engine) Receive(to []byte) (*transport.Message, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.messages) == 0 {
		return nil, nil
	}
	m := e.messages[0]
	if copy(to, m.Bytes) < len(m.Bytes) {
		return m, fmt.Errorf("%w: %d bytes, and the message has %d", ErrSpace, len(to), len(m.Bytes))
	}
	e.messages[0] = nil
	e.messages = e.messages[1:]
	e.waiting -= len(m.Bytes)
	e.ring()
	return m, nil
}

// ring turns the alarm on while something waits. The caller holds e.mu.
func (e *Engine) ring() { e.alarm.set(len(e.ended)+len(e.messages) > 0) }

// Descriptor is readable while completions wait to be polled, or messages to be received. It is the engine's, which closes
// it, and must be neither read nor written.
func (e *Engine) Descriptor() (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.alarm.descriptor()
}

// An alarm is a pipe with one byte in it while it is on. There is none until somebody asks for its descriptor.
type alarm struct {
	on   bool
	r, w *os.File
	fd   int
}

func (a *alarm) descriptor() (int, error) {
	if a.r != nil {
		return a.fd, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("a descriptor to wait on: %w", err)
	}
	a.r, a.w, a.fd = r, w, int(r.Fd())
	if a.on {
		a.ring()
	}
	return a.fd, nil
}

// set turns the alarm on or off.
func (a *alarm) set(on bool) {
	was := a.on
	a.on = on
	switch {
	case a.r == nil || on == was:
	case on:
		a.ring()
	default:
		_, _ = a.r.Read(make([]byte, 1)) // is there
	}
}

func (a *alarm) ring() { _, _ = a.w.Write([]byte{0}) } // there is room: the pipe is empty

func (a *alarm) close() {
	if a.r != nil {
		_, _ = a.r.Close(), a.w.Close()
		a.r, a.w = nil, nil
	}
}
