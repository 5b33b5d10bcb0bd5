package turn

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurn: whoever wakes up first, turns are taken in order, and one that is not taken
// holds up the others for longest.
func TestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for gone, took := range map[int]time.Duration{-1: 0, 3: longest} {
			var order []int
			var mu sync.Mutex
			var before chan struct{}
			var turns []Turn
			for i := range 8 {
				turns = append(turns, Next(&before, i == 7))
			}
			began := time.Now()
			var all sync.WaitGroup
			for i, turn := range slices.Backward(turns) {
				if i == gone {
					continue
				}
				all.Go(func() {
					turn.Wait()
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					turn.Pass()
				})
				synctest.Wait()
			}
			all.Wait()
			// The waits of those behind the one that has left began with its.
			if want := []int{0, 1, 2, 3, 4, 5, 6, 7}; gone < 0 && !slices.Equal(order, want) || len(order) < 7 || time.Since(began) != took {
				t.Errorf("%d gone: %v after %v", gone, order, time.Since(began))
			}
		}
	})
}
