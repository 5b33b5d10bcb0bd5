// Package pages maps memory outside the Go heap, as each system does it, and copies memory that its owner may have
// unmapped.
package pages

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
)

// ErrGone: memory is not mapped, or its protection does not permit the transfer.
var ErrGone = errors.New("the memory has been unmapped or protected")

// Permit reports whether all of mem is mapped and may be read, and written if write is set.
func Permit(mem []byte, write bool) bool {
	writable, err := Check(mem)
	return err == nil && (writable || !write)
}

// Copy copies src to dst. A page that cannot be read or written is EFAULT, and does not end the process unless a host in another language has replaced Go's handler of SIGSEGV. dst is then in any state.
func Copy(dst, src []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%w at %#x", syscall.EFAULT, fault.Addr())
		}
	}()
	copy(dst, src)
	return nil
}

// Map maps size zero bytes. release gives them back; a second call of it does nothing.
func Map(size int) (mem []byte, release func() error, err error) {
	if mem, err = obtain(size); err != nil {
		return nil, nil, err
	}
	return mem, sync.OnceValue(func() error { return giveBack(mem) }), nil
}
