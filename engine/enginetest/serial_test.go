package enginetest

import "testing"

// TestSerial: the contract can be kept by a scheduler of another package.
func TestSerial(t *testing.T) {
	sum := TestScheduler(t, func(t *testing.T, setup Setup) Subject {
		return Subject{Scheduler: NewSerial(setup.Pool, setup.MaxModelLen)}
	})
	t.Logf("%+v", sum)
	if sum.Steps == 0 {
		t.Error("nothing was stepped")
	}
}
