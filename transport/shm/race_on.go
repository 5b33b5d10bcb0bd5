//go:build linux && race

package shm

import (
	"runtime"
	"unsafe"

	"kvferry/transport"
)

// The race detector does not see what goes through the kernel or another mapping of the same memory. In tests
// both ends are one process: these tell it what is touched, by the target's own addresses, and what comes
// after what. In one process only: an address of another is nobody's here.
var wire byte

func willSend()     { runtime.RaceReleaseMerge(unsafe.Pointer(&wire)) }
func haveReceived() { runtime.RaceAcquire(unsafe.Pointer(&wire)) }
func copied()       { runtime.RaceReleaseMerge(unsafe.Pointer(&wire)) }
func seenEnd()      { runtime.RaceAcquire(unsafe.Pointer(&wire)) }

// copying is a copy between local memory and an address of the target, which is this process.
func copying(op transport.Op, local []byte, at uint64) {
	if len(local) == 0 {
		return
	}
	here, there := unsafe.Pointer(unsafe.SliceData(local)), *(*unsafe.Pointer)(unsafe.Pointer(&at))
	if op == transport.Write {
		runtime.RaceReadRange(here, len(local))
		runtime.RaceWriteRange(there, len(local))
		return
	}
	runtime.RaceReadRange(there, len(local))
	runtime.RaceWriteRange(here, len(local))
}
