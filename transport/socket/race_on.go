//go:build race

package socket

import (
	"runtime"
	"unsafe"
)

// The race detector does not see what the kernel reads and writes, nor that
// what is read from a socket was written to one before. As package syscall does
// for read and write, these tell it, for writev and readv: tests with both ends
// in one process are then checked for misuse of segments' memory.
var wire byte

func willWrite(vec [][]byte) {
	for _, b := range vec {
		if len(b) > 0 {
			runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
		}
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&wire))
}

func haveRead(dst [][]byte, n int) {
	runtime.RaceAcquire(unsafe.Pointer(&wire))
	for _, b := range dst {
		if m := min(n, len(b)); m > 0 {
			runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), m)
			n -= m
		}
	}
}
