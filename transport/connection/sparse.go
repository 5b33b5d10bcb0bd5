package connection

import (
	"sync"
	"time"
)

// Sparse lets a line through every so often, and counts what it held back. Anybody may
// connect to a rail, say something else, and do it again a thousand times a second. The
// zero value is ready.
type Sparse struct {
	mu   sync.Mutex
	at   time.Time // of the last line
	held int
}

// sparseEvery keeps a flood of connections from being one of log lines too.
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
