//go:build !linux

package clock

// Precise is Std where there is no timerfd: timers may be a millisecond late.
func Precise() Clock { return Std() }
