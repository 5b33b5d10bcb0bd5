// Package loadtest is what every source of requests must do.
package loadtest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"kvferry/load"
)

// Bounds are what a source promises of its requests.
type Bounds struct {
	Requests  int // how many there are, exactly
	Prompt    int // tokens of the longest prompt
	MaxTokens int // the most that a request wants
	Vocab     int // every token is below it
	// Texts says that prompts are texts whose tokens nobody knows: only with no tokenizer.
	Texts bool
	// Held says that the load has to have all of it in memory, because what it is sampled
	// from is shuffled or filtered as a whole. Its description says so.
	Held bool
}

// TestSource holds a source to what package load says of it. open begins the same stream
// each time; one of a million tokens or more shows what it keeps in memory.
//
//   - Times begin at 0 or later and never go back, but of requests that follow others, which
//     come after those in the stream. One that continues another comes before the next
//     request that follows none.
//   - Prompts have from 1 to b.Prompt tokens below b.Vocab, or are texts if b.Texts; from 1
//     to b.MaxTokens are wanted. No two requests have the same ID, if they have one.
//   - The stream is the same each time, from the first request to the last, and a request
//     belongs to who took it: what is done to its prompt shows in no other.
//   - After the last request Next has none for ever, and a stream may be closed early.
//   - Nothing is kept of what was taken, and nothing drawn long before, unless b.Held.
func TestSource(t *testing.T, open func() (load.Load, error), b Bounds) {
	t.Helper()
	for _, c := range []struct {
		name  string
		check func(open func() load.Load, b Bounds) error
	}{
		{"requests", checkRequests},
		{"same again", checkSame},
		{"ends for good", checkEnd},
		{"closes early", checkClose},
		{"memory", checkMemory},
	} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.name == "memory" {
				t.Skip("SKIPPED: without -short only")
			}
			if err := c.check(func() load.Load {
				l, err := open()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() }) // one check closes it itself
				return l
			}, b); err != nil {
				t.Error(err)
			}
		})
	}
}

func checkRequests(open func() load.Load, b Bounds) error {
	l := open()
	last, n, begun := time.Duration(0), 0, 0 // begun: the last that follows none
	ids := map[string]bool{}
	for ; ; n++ {
		r, ok, err := l.Next()
		if err != nil {
			return fmt.Errorf("request %d: %w", n, err)
		}
		if !ok {
			break
		}
		if len(r.After) == 0 {
			if r.At < last {
				return fmt.Errorf("request %d is due at %v, the one before it at %v", n, r.At, last)
			}
			last, begun = r.At, n
		}
		if err := checkFollows(n, begun, &r); err != nil {
			return err
		}
		if b.Texts && (r.Text == "" || len(r.Prompt) > 0) {
			return fmt.Errorf("request %d has a text of %d bytes and %d tokens: want a text alone", n, len(r.Text), len(r.Prompt))
		}
		if !b.Texts && (len(r.Prompt) < 1 || len(r.Prompt) > b.Prompt) || r.MaxTokens < 1 || r.MaxTokens > b.MaxTokens {
			return fmt.Errorf("request %d has %d tokens and wants %d: want 1 to %d, and 1 to %d", n, len(r.Prompt), r.MaxTokens, b.Prompt, b.MaxTokens)
		}
		for _, id := range r.Prompt {
			if int64(id) >= int64(b.Vocab) {
				return fmt.Errorf("request %d has token %d of a vocabulary of %d", n, id, b.Vocab)
			}
		}
		if ids[r.ID] && r.ID != "" {
			return fmt.Errorf("request %d has the ID %q of another", n, r.ID)
		}
		ids[r.ID] = true
	}
	if n != b.Requests {
		return fmt.Errorf("%d requests, want %d", n, b.Requests)
	}
	if l.End < 0 || l.InFlight < 0 {
		return fmt.Errorf("lasts until %v, with %d in flight", l.End, l.InFlight)
	}
	return nil
}

func checkFollows(n, begun int, r *load.Request) error {
	for _, a := range r.After {
		if a < 0 || a >= n {
			return fmt.Errorf("request %d follows request %d, which does not come before it", n, a)
		}
	}
	switch {
	case r.At < 0 || r.Delay < 0:
		return fmt.Errorf("request %d is due at %v, %v after others", n, r.At, r.Delay)
	case r.Continues && len(r.After) == 0:
		return fmt.Errorf("request %d continues none", n)
	case r.Continues && r.After[0] < begun:
		return fmt.Errorf("request %d continues request %d, and request %d, which follows none, is between them", n, r.After[0], begun)
	}
	return nil
}

// checkSame also spoils the prompts of one of the two streams as it takes them.
func checkSame(open func() load.Load, _ Bounds) error {
	a, b := open(), open()
	if a.InFlight != b.InFlight || a.End != b.End {
		return fmt.Errorf("%d in flight until %v, then %d until %v", a.InFlight, a.End, b.InFlight, b.End)
	}
	for n := 0; ; n++ {
		x, ok, err := a.Next()
		y, okAgain, errAgain := b.Next()
		if err != nil || errAgain != nil || ok != okAgain {
			return fmt.Errorf("request %d: %t, %w, then %t, %w", n, ok, err, okAgain, errAgain)
		}
		if !ok {
			return nil
		}
		if x.ID != y.ID || x.At != y.At || x.MaxTokens != y.MaxTokens || x.Text != y.Text || !slices.Equal(x.Prompt, y.Prompt) ||
			!slices.Equal(x.Messages, y.Messages) || !slices.Equal(x.After, y.After) || x.Delay != y.Delay || x.Continues != y.Continues ||
			x.Adapter != y.Adapter || x.Group != y.Group || x.Worker != y.Worker {
			return fmt.Errorf("request %d is another the second time: %q due at %v, %d + %d tokens; then %q due at %v, %d + %d tokens", n,
				x.ID, x.At, len(x.Prompt), x.MaxTokens, y.ID, y.At, len(y.Prompt), y.MaxTokens)
		}
		for i := range x.Prompt {
			x.Prompt[i] = ^x.Prompt[i]
		}
	}
}

func checkEnd(open func() load.Load, _ Bounds) error {
	l := open()
	for ok := true; ok; {
		var err error
		if _, ok, err = l.Next(); err != nil {
			return err
		}
	}
	for range 3 {
		if _, ok, err := l.Next(); ok || err != nil {
			return fmt.Errorf("after the last request Next returns %t, %w", ok, err)
		}
	}
	return nil
}

// checkClose closes a stream that is under way.
func checkClose(open func() load.Load, _ Bounds) error {
	l := open()
	if _, ok, err := l.Next(); !ok || err != nil {
		return fmt.Errorf("the first request: %t, %w", ok, err)
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("closed early: %w", err)
	}
	return nil
}

// checkMemory takes half of the stream and looks at what has stayed.
func checkMemory(open func() load.Load, b Bounds) error {
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what the first one's finalizers freed
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	l := open()
	tokens, most := 0, int64(0)
	for i := range b.Requests / 2 {
		r, ok, err := l.Next()
		if !ok || err != nil {
			return fmt.Errorf("request %d: %t, %w", i, ok, err)
		}
		if tokens += len(r.Prompt); i == 0 {
			most = heap() - before // with what was drawn before it was asked for
		}
	}
	most = max(most, heap()-before)
	runtime.KeepAlive(l)
	if b.Held {
		return nil
	}
	// A quarter of the tokens; 64 KiB and 16 bytes a request for what a source needs at
	// all: buffers, a generator, lengths.
	if allowed := int64(tokens + 64<<10 + 16*b.Requests); most > allowed {
		return fmt.Errorf("%d KiB are held of a stream whose half is %d KiB of tokens", most>>10, 4*tokens>>10)
	}
	return nil
}

// TestFailing holds a source that fails to what package load says: the error comes again,
// and no request after it. It returns the error.
func TestFailing(t *testing.T, s load.Source) error {
	t.Helper()
	err, fault := checkFailing(s)
	if fault != nil {
		t.Error(fault)
	}
	return err
}

func checkFailing(s load.Source) (failure, fault error) {
	for failure == nil {
		var ok bool
		if _, ok, failure = s.Next(); failure == nil && !ok {
			return nil, fmt.Errorf("the source ends without an error")
		}
	}
	for range 3 {
		if _, ok, again := s.Next(); ok || again == nil || again.Error() != failure.Error() {
			return failure, fmt.Errorf("after the error %q Next returns %t, %w", failure, ok, again)
		}
	}
	return failure, nil
}
