package lab

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Schedule makes faults happen at their times. What a fault does is the lab's. It is
// for one Run; See may be called before, during and after it.
type Schedule struct {
	faults []Fault // stays as it is

	mu    sync.Mutex
	marks map[string]chan struct{} // closed and nil when the text was printed
}

// NewSchedule is one of faults that are valid for their lab.
func NewSchedule(faults []Fault) *Schedule {
	s := &Schedule{faults: faults, marks: make(map[string]chan struct{})}
	for _, f := range faults {
		if f.After != "" && s.marks[f.After] == nil {
			s.marks[f.After] = make(chan struct{})
		}
	}
	return s
}

// See lets off the faults that wait for a text. It gets every line that a command
// prints.
func (s *Schedule) See(line Line) {
	if line.Stderr {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for text, c := range s.marks {
		if c != nil && strings.Contains(line.Text, text) {
			close(c)
			s.marks[text] = nil
		}
	}
}

// Run has each fault inflicted at its time, counted from now, and returns when all
// have happened or ctx is over. Missed gets the faults for which that was too
// early. Faults that are counted from the same moment come one after another, in
// order, however late; both functions may be called from several goroutines.
func (s *Schedule) Run(ctx context.Context, inflict, missed func(Fault)) {
	began := time.Now()
	var all sync.WaitGroup
	defer all.Wait()
	after := make(map[string][]Fault)
	for _, f := range s.faults {
		after[f.After] = append(after[f.After], f)
	}
	for text, faults := range after {
		slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Delay, b.Delay) })
		s.mu.Lock()
		printed := s.marks[text]
		s.mu.Unlock()
		all.Go(func() {
			from := began
			if printed != nil {
				select {
				case <-printed:
				case <-ctx.Done():
				}
			}
			// A text that was printed before Run counts from Run.
			if text != "" {
				from = time.Now()
			}
			for _, f := range faults {
				timer := time.NewTimer(time.Until(from.Add(f.Delay)))
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
				timer.Stop()
				if ctx.Err() != nil {
					missed(f)
				} else {
					inflict(f)
				}
			}
		})
	}
}
