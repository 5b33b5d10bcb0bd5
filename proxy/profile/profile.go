// Package profile takes CPU profiles of this process for clients that ask for one.
package profile

import (
	"bytes"
	"errors"
	"fmt"
	"runtime/pprof"
	"sync"
	"time"
)

// Why a Profiler does not do as it is told.
var (
	ErrRuns = errors.New("a profile runs already: POST /stop_profile ends it")
	ErrNone = errors.New("no profile was begun: POST /start_profile does so")
)

// A Profiler takes a CPU profile of this process for whoever asks: what the proxy itself
// costs. The nodes' time is modelled, and there is no GPU to profile.
type Profiler struct {
	mu    sync.Mutex
	runs  bool
	data  bytes.Buffer // of the profile that ended last, until it is fetched
	limit *time.Timer
}

// maxProfile is when a profile that nobody stops ends by itself. It can be fetched after that.
const maxProfile = 10 * time.Minute

// Start begins a profile. One that was never fetched is lost.
func (q *Profiler) Start() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.runs {
		return ErrRuns
	}
	q.data.Reset()
	if err := pprof.StartCPUProfile(&q.data); err != nil {
		return fmt.Errorf("%w: %w", ErrRuns, err) // one of this process that is not ours
	}
	q.runs = true
	q.limit = time.AfterFunc(maxProfile, q.End)
	return nil
}

// End stops a profile if one runs.
func (q *Profiler) End() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked()
}

func (q *Profiler) endLocked() {
	if q.runs {
		pprof.StopCPUProfile()
		q.limit.Stop()
		q.runs = false
	}
}

// Take ends the profile and returns it, once.
func (q *Profiler) Take() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked()
	if q.data.Len() == 0 {
		return nil, ErrNone
	}
	defer q.data.Reset()
	return bytes.Clone(q.data.Bytes()), nil
}
