package transporttest

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"kvferry/transport"
)

func TestContract(t *testing.T) {
	n := NewNetwork()
	var names atomic.Int64
	TestRail(t, func(testing.TB) transport.Rail { return Device{n.Rail(strconv.FormatInt(names.Add(1), 10))} }, Checked)
}

// TestTallyWakesAll: of several that wait for completions, none takes another's wake-up.
func TestTallyWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTally(t)
		var waiters sync.WaitGroup
		for _, n := range []int{2, 1} {
			waiters.Go(func() { c.wait(n) })
			synctest.Wait()
		}
		for range 2 {
			c.done(new(transport.Slice), nil)
			synctest.Wait()
		}
		waiters.Wait()
	})
}
