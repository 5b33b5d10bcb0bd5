package process

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxIov is the kernel's limit of elements in one call (UIO_MAXIOV).
const maxIov = 1024

// Supported returns nil if the kernel lets this process read another's memory of the
// same user, as far as can be told without one, and an ErrUnsupported that says why
// not otherwise. What a peer allows shows when it is tried.
var Supported = sync.OnceValue(func() error {
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		if err := yama(strings.TrimSpace(string(scope)), mayTrace()); err != nil {
			return err
		}
	}
	from, to := []byte("cma"), make([]byte, 3)
	var v Vector
	v.Add(to, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(from)))))
	if err := v.Read(os.Getpid()); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	runtime.KeepAlive(from)
	return nil
})

// yama says what a ptrace_scope (Documentation/admin-guide/LSM/Yama.rst) leaves to a
// process, with CAP_SYS_PTRACE or without. For scope 1 there is Permit.
func yama(scope string, capable bool) error {
	switch {
	case scope == "2" && !capable:
		return fmt.Errorf("%w: kernel.yama.ptrace_scope is 2, which asks for CAP_SYS_PTRACE", ErrUnsupported)
	case scope == "3":
		return fmt.Errorf("%w: kernel.yama.ptrace_scope is 3, which is never", ErrUnsupported)
	}
	return nil
}

// mayTrace reports whether this process has CAP_SYS_PTRACE.
func mayTrace() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) == nil && d[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// Permit lets this user's other processes read and write this one's memory, also where Yama
// keeps that to its parents.
func Permit() {
	// An error means that there is no Yama, which then restricts nothing.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // PR_SET_PTRACER_ANY
}

// A Vector is one copy between this process and another: pieces of memory here, and where they
// begin there. The zero value is empty. It is for one goroutine.
type Vector struct {
	here  []unix.Iovec
	there []unix.RemoteIovec
	n     int
}

// Add appends a piece: b here, and as many bytes at an address of the other process.
func (v *Vector) Add(b []byte, at uint64) {
	i := unix.Iovec{Base: unsafe.SliceData(b)}
	i.SetLen(len(b))
	v.here = append(v.here, i)
	v.there = append(v.there, unix.RemoteIovec{Base: uintptr(at), Len: len(b)})
	v.n += len(b)
}

// Len is how many bytes its pieces have.
func (v *Vector) Len() int { return v.n }

// Reset empties the vector, which keeps no memory alive then.
func (v *Vector) Reset() {
	clear(v.here)
	v.here, v.there, v.n = v.here[:0], v.there[:0], 0
}

// Read copies the pieces from the process's memory. It uses the vector up, which is still to be
// Reset. An error leaves the memory here in any state.
func (v *Vector) Read(pid int) error { return v.copy(pid, "process_vm_readv", unix.ProcessVMReadv) }

// Write copies the pieces to the process's memory, as Read does from it.
func (v *Vector) Write(pid int) error {
	return v.copy(pid, "process_vm_writev", unix.ProcessVMWritev)
}

func (v *Vector) copy(pid int, name string, call func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error)) error {
	here, there := v.here, v.there
	for len(here) > 0 {
		k := min(len(here), maxIov)
		n, err := call(pid, here[:k], there[:k], 0)
		switch {
		case err != nil:
			return explain(pid, name, err)
		case n <= 0:
			return explain(pid, name, unix.EFAULT)
		}
		// It may stop at the end of an element, or anywhere in one.
		for n > 0 {
			if n < there[0].Len {
				left := there[0].Len - n
				here[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(here[0].Base), n))
				here[0].SetLen(left)
				there[0] = unix.RemoteIovec{Base: there[0].Base + uintptr(n), Len: left}
				break
			}
			n -= there[0].Len
			here, there = here[1:], there[1:]
		}
	}
	return nil
}

// explain says whose memory it was, and what to do about a refusal.
func explain(pid int, call string, errno error) error {
	err := fmt.Errorf("process %d: %w", pid, os.NewSyscallError(call, errno))
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run both ends as one user, with ptrace allowed (kernel.yama.ptrace_scope at most 1; in containers, CAP_SYS_PTRACE)", err)
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: it has ended", err)
	}
	return err
}
