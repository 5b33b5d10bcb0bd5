package shm

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// futex(2), on words that processes share: so without FUTEX_PRIVATE_FLAG.
const (
	futexWaitOp = 0
	futexWakeOp = 1
	everybody   = 1<<31 - 1
)

// futexWait sleeps until it is woken at the word, if that is value still; for so long at most. It may return
// early: the caller looks again.
func futexWait(word *uint32, value uint32, most time.Duration) {
	limit := unix.NsecToTimespec(int64(most))
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWaitOp, uintptr(value), uintptr(unsafe.Pointer(&limit)), 0, 0)
}

// futexWake wakes who sleeps at the word. It does not block.
func futexWake(word *uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWakeOp, everybody, 0, 0, 0)
}
