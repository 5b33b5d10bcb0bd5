// Package loadtest is what every source of requests must do.
package loadtest

import (
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
}

// TestSource holds a source to what package load says of it. open begins the same stream
// each time. For its memory to be seen, the stream should have a million tokens or more.
//
//   - The stream is the same each time, from the first request to the last.
//   - Times begin at 0 or later and never go back.
//   - Prompts have from 1 to b.Prompt tokens below b.Vocab; from 1 to b.MaxTokens are
//     wanted. No two requests have the same ID, if they have one.
//   - A request belongs to who took it: what is done to its prompt shows in no other.
//   - After the last request Next has none for ever, and a stream may be closed early.
//   - Nothing is kept of what was taken, and nothing drawn long before.
func TestSource(t *testing.T, open func() (load.Load, error), b Bounds) {
	t.Helper()
	begin := func(t *testing.T) load.Load {
		t.Helper()
		l, err := open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() }) // some have closed it
		return l
	}
	t.Run("requests", func(t *testing.T) { testRequests(t, begin(t), b) })
	t.Run("same again", func(t *testing.T) { testSame(t, begin(t), begin(t)) })
	t.Run("ends for good", func(t *testing.T) { testEnd(t, begin(t)) })
	t.Run("closes", func(t *testing.T) { testClose(t, begin(t)) })
	t.Run("memory", func(t *testing.T) { testMemory(t, begin(t), b) })
}

func testRequests(t *testing.T, l load.Load, b Bounds) {
	last, n := time.Duration(0), 0
	ids := map[string]bool{}
	for ; ; n++ {
		r, ok, err := l.Next()
		if err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
		if !ok {
			break
		}
		if r.At < last {
			t.Fatalf("request %d is due at %v, the one before it at %v", n, r.At, last)
		}
		last = r.At
		if len(r.Prompt) < 1 || len(r.Prompt) > b.Prompt || r.MaxTokens < 1 || r.MaxTokens > b.MaxTokens {
			t.Fatalf("request %d has %d tokens and wants %d: want 1 to %d, and 1 to %d", n, len(r.Prompt), r.MaxTokens, b.Prompt, b.MaxTokens)
		}
		if top := slices.Max(r.Prompt); int64(top) >= int64(b.Vocab) {
			t.Fatalf("request %d has token %d of a vocabulary of %d", n, top, b.Vocab)
		}
		if ids[r.ID] && r.ID != "" {
			t.Fatalf("request %d has the ID %q of another", n, r.ID)
		}
		ids[r.ID] = true
	}
	if n != b.Requests {
		t.Errorf("%d requests, want %d", n, b.Requests)
	}
	if l.End < 0 || l.InFlight < 0 {
		t.Errorf("End %v, InFlight %d", l.End, l.InFlight)
	}
}

// testSame also spoils the prompts of one of the two streams as it takes them.
func testSame(t *testing.T, a, b load.Load) {
	if a.InFlight != b.InFlight || a.End != b.End {
		t.Errorf("%d in flight until %v, then %d until %v", a.InFlight, a.End, b.InFlight, b.End)
	}
	for n := 0; ; n++ {
		x, ok, err := a.Next()
		y, okAgain, errAgain := b.Next()
		if err != nil || errAgain != nil || ok != okAgain {
			t.Fatalf("request %d: %v, %v, then %v, %v", n, ok, err, okAgain, errAgain)
		}
		if !ok {
			return
		}
		if x.ID != y.ID || x.At != y.At || x.MaxTokens != y.MaxTokens || !slices.Equal(x.Prompt, y.Prompt) {
			t.Fatalf("request %d differs from itself: %q due at %v, %d + %d tokens; %q due at %v, %d + %d tokens", n,
				x.ID, x.At, len(x.Prompt), x.MaxTokens, y.ID, y.At, len(y.Prompt), y.MaxTokens)
		}
		for i := range x.Prompt {
			x.Prompt[i] = ^x.Prompt[i]
		}
	}
}

func testEnd(t *testing.T, l load.Load) {
	for ok := true; ok; {
		var err error
		if _, ok, err = l.Next(); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, ok, err := l.Next(); ok || err != nil {
			t.Fatalf("after the last: %v, %v", ok, err)
		}
	}
}

// testClose closes a stream that is under way.
func testClose(t *testing.T, l load.Load) {
	if _, ok, err := l.Next(); !ok || err != nil {
		t.Fatalf("the first request: %v, %v", ok, err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// testMemory takes half of the stream and looks at what has stayed.
func testMemory(t *testing.T, l load.Load, b Bounds) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what the first one's finalizers freed
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, tokens, most := heap(), 0, int64(0)
	for i := range b.Requests / 2 {
		r, ok, err := l.Next()
		if !ok || err != nil {
			t.Fatalf("request %d: %v, %v", i, ok, err)
		}
		tokens += len(r.Prompt)
		if i == 0 {
			most = heap() - before
		}
	}
	most = max(most, heap()-before)
	runtime.KeepAlive(l)
	// 64 KiB for what a source needs at all: buffers, a generator, 8 bytes a request.
	if allowed := int64(4*tokens/4 + 64<<10 + 16*b.Requests); most > allowed {
		t.Errorf("%d KiB are held of a stream whose half is %d KiB of tokens", most>>10, 4*tokens>>10)
	}
}

// TestFailing holds a source that fails to what package load says: the error comes again,
// and no request after it. It returns the error.
func TestFailing(t *testing.T, s load.Source) error {
	t.Helper()
	for {
		_, ok, err := s.Next()
		if err == nil && !ok {
			t.Fatal("the source ends without an error")
		}
		if err == nil {
			continue
		}
		for range 3 {
			if _, ok, again := s.Next(); ok || again == nil || again.Error() != err.Error() {
				t.Fatalf("after the error %q: %v, %v", err, ok, again)
			}
		}
		return err
	}
}
