package nics

import (
	"context"
	"sync"

	"kvferry/lab"
)

// flapping has the cables that go and come by themselves.
type flapping struct {
	mu    sync.Mutex
	stop  map[int]context.CancelFunc // by NIC
	ended bool
	all   sync.WaitGroup
}

// start has a NIC's cable flap from now on, and not as it did before.
func (f *flapping) start(nic int, flap lab.Flap, plug func(nic int, in bool)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return
	}
	if stop := f.stop[nic]; stop != nil {
		stop()
	}
	ctx, stop := context.WithCancel(context.Background())
	if f.stop == nil {
		f.stop = make(map[int]context.CancelFunc)
	}
	f.stop[nic] = stop
	f.all.Go(func() { flap.Run(ctx, func(in bool) { plug(nic, in) }) })
}

// quiet ends the flapping of a NIC.
func (f *flapping) quiet(nic int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if stop := f.stop[nic]; stop != nil {
		stop()
		delete(f.stop, nic)
	}
}

// end ends all of it, and returns when no cable moves any more.
func (f *flapping) end() {
	f.mu.Lock()
	f.ended = true
	for _, stop := range f.stop {
		stop()
	}
	f.mu.Unlock()
	f.all.Wait()
}

// plug is what flapping does, in the log and the journal as any fault.
func (l *Lab) plug(nic int, in bool) {
	if in {
		_ = l.Restore(nic)
	} else {
		_ = l.Cut(nic)
	}
}
