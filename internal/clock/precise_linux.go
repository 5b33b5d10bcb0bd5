package clock

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Precise returns a clock whose timers are timerfds, started now.
func Precise() Clock { return &precise{std{start: time.Now()}} }

type precise struct{ std }

func (c *precise) NewTimer() (Timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("clock: timerfd_create: %w", err)
	}
	t := &fdTimer{clock: c, fd: fd, f: os.NewFile(uintptr(fd), "timerfd"), c: make(chan struct{}, 1), done: make(chan struct{})}
	go t.run()
	return t, nil
}

type fdTimer struct {
	clock *precise
	fd    int
	f     *os.File
	c     chan struct{}
	done  chan struct{}
}

func (t *fdTimer) run() {
	defer close(t.done)
	var buf [8]byte
	for {
		if _, err := t.f.Read(buf[:]); err != nil {
			if errors.Is(err, os.ErrClosed) {
				return
			}
			// Only a descriptor that is no timerfd could get here.
			panic(fmt.Sprintf("clock: timerfd read: %v", err))
		}
		select {
		case t.c <- struct{}{}:
		default:
		}
	}
}

func (t *fdTimer) C() <-chan struct{} { return t.c }

// Set uses a relative time: the clock's start is not the kernel's.
func (t *fdTimer) Set(at time.Duration) {
	// A zero value would disarm the timer.
	t.arm(max(at-t.clock.Now(), 1))
}

func (t *fdTimer) Stop() { t.arm(0) }

func (t *fdTimer) arm(d time.Duration) {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		panic(fmt.Sprintf("clock: timerfd_settime: %v", err))
	}
}

func (t *fdTimer) Close() error {
	err := t.f.Close()
	<-t.done
	return err
}
