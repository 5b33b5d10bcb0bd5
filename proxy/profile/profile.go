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
	state stage
	data  bytes.Buffer
	limit *time.Timer
}

// stage is how far a profile has come.
type stage int

const (
	noProfile stage = iota
	profileRuns
	profileTaken // to be fetched
)

// maxProfile is when a profile that nobody stops ends by itself. It can be fetched after that.
const maxProfile = 10 * time.Minute

// Start begins a profile. One that was never fetched is lost.
func (q *Profiler) Start() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == profileRuns {
		return ErrRuns
	}
	q.data.Reset()
	if err := pprof.StartCPUProfile(&q.data); err != nil {
		return fmt.Errorf("%w: %w", ErrRuns, err) // one of this process that is not ours
	}
	q.state = profileRuns
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
	if q.state == profileRuns {
		pprof.StopCPUProfile()
		q.limit.Stop()
		q.state = profileTaken
	}
}

// Take ends the profile and returns it, once.
func (q *Profiler) Take() ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.state == noProfile {
		return nil, ErrNone
	}
	q.endLocked()
	q.state = noProfile
	return bytes.Clone(q.data.Bytes()), nil
}
