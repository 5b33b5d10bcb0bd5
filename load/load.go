package load

import (
	"io"
	"time"

	"kvferry/kvcache"
)

// A Request is one completion to ask for. It belongs to who took it from the source;
// the source does not touch it again.
type Request struct {
	ID        string          // what the server is told; the client gives it one if it is empty
	At        time.Duration   // due since the start of the run; not before the one before it
	Prompt    []kvcache.Token // one token or more, each below the model's vocabulary
	MaxTokens int             // wanted, 1 or more, and no fewer: nothing stops early
}

// A Source is where requests come from. Next returns them in order of time, and false
// after the last. After that, and after an error, it returns the same for ever. A
// Source is for one goroutine. One that holds a file is an io.Closer too; [Close] is for
// any.
type Source interface {
	Next() (r Request, ok bool, err error)
}

// A Load is a source with the way its requests are let go.
type Load struct {
	Source
	// InFlight is how many requests may be under way at once, 0 for any number. One that
	// is due and finds no room is sent when another has ended.
	InFlight int
	// End is how long a run lasts at least. The client that made the published tables
	// slept one gap more after its last request.
	End time.Duration
}

// Close releases what the source holds. No Next may follow.
func (l Load) Close() error { return Close(l.Source) }

// Close closes the source if it is to be closed.
func Close(s Source) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
