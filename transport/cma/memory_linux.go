package cma

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport/socket"
)

const (
	// maxCores share a copy. They take parts of partBytes in turn, or of the
	// maxParts-th: a core that is late, or busy with something else, then has
	// the others wait for one part, which takes some 40 us.
	maxCores  = 4
	maxParts  = 32
	partBytes = 256 << 10
	// maxIov is the kernel's limit of elements in one call (UIO_MAXIOV).
	maxIov = 1024
)

// supported returns nil if the kernel lets this process read another's memory of the
// same user, as far as can be told without one, and an ErrUnsupported that says why
// not otherwise. What a peer allows shows when it is dialled.
var supported = sync.OnceValue(func() error {
	if scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope"); err == nil {
		if err := yama(strings.TrimSpace(string(scope)), mayTrace()); err != nil {
			return err
		}
	}
	from, to := []byte("cma"), make([]byte, 3)
	m := memory{pid: os.Getpid()}
	if err := m.Copy([][]byte{to}, []uint64{uint64(uintptr(unsafe.Pointer(unsafe.SliceData(from))))}); err != nil {
		return fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	runtime.KeepAlive(from)
	return nil
})

// yama says what a ptrace_scope (Documentation/admin-guide/LSM/Yama.rst) leaves to a
// process, with CAP_SYS_PTRACE or without. For scope 1 there is permit.
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

// permit lets this user's other processes read this one's memory, also where Yama
// keeps that to its parents.
func permit() {
	// An error means that there is no Yama, which then restricts nothing.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // PR_SET_PTRACER_ANY
}

// memory is that of another process. It is for one goroutine.
type memory struct {
	pid   int
	parts [maxParts]part
}

// A part of a copy: elements of both ends, of the same lengths.
type part struct {
	to   []unix.Iovec
	from []unix.RemoteIovec
	n    int
	err  error
}

// credentials are those of the process that made the other end of a connection, as
// the kernel has them.
func credentials(c socket.Conn) (*unix.Ucred, error) {
	rc, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var failed error
	if err := rc.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return nil, errors.Join(err, os.NewSyscallError("getsockopt", failed))
	}
	return cred, nil
}

// peerOf is the process that a connection comes from, if it is of this user, and else
// the user: what has no business here counts as one peer.
func peerOf(c socket.Conn) string {
	cred, err := credentials(c)
	switch {
	case err != nil:
		return "unknown"
	case int(cred.Uid) != os.Getuid():
		return fmt.Sprintf("uid %d", cred.Uid)
	}
	return fmt.Sprintf("pid %d", cred.Pid)
}

// attach opens the memory of the process at the other end of a connection.
func attach(c socket.Conn) (socket.Memory, error) {
	cred, err := credentials(c)
	if err != nil {
		return nil, err
	}
	if cred.Pid == 0 {
		return nil, errors.New("its process is not visible in this PID namespace: run both in one (docker run --pid=host)")
	}
	return &memory{pid: int(cred.Pid)}, nil
}

// Copy implements socket.Memory.
func (m *memory) Copy(dst [][]byte, at []uint64) error {
	total := 0
	for _, b := range dst {
		total += len(b)
	}
	k := max(1, min(total/partBytes, maxParts))
	m.cut(dst, at, (total+k-1)/k)
	// A core that comes when all parts are taken is not waited for.
	var next atomic.Int32
	var undone sync.WaitGroup
	undone.Add(k)
	work := func() {
		for i := int(next.Add(1)) - 1; i < k; i = int(next.Add(1)) - 1 {
			m.parts[i].read(m.pid)
			undone.Done()
		}
	}
	for range min(k, maxCores, runtime.GOMAXPROCS(0)) - 1 {
		go work()
	}
	work()
	undone.Wait()
	var err error
	for i := range m.parts[:k] {
		p := &m.parts[i]
		if err == nil {
			err = p.err
		}
		p.reset()
	}
	return err
}

// cut fills parts in turn with size bytes each.
func (m *memory) cut(dst [][]byte, at []uint64, size int) {
	p := &m.parts[0]
	i := 0
	for j, b := range dst {
		from := at[j]
		for len(b) > 0 {
			if p.n == size {
				i++
				p = &m.parts[i]
			}
			n := min(len(b), size-p.n)
			v := unix.Iovec{Base: unsafe.SliceData(b)}
			v.SetLen(n)
			p.to = append(p.to, v)
			p.from = append(p.from, unix.RemoteIovec{Base: uintptr(from), Len: n})
			p.n += n
			b, from = b[n:], from+uint64(n)
		}
	}
}

// reset keeps no memory alive.
func (p *part) reset() {
	clear(p.to)
	p.to, p.from, p.n, p.err = p.to[:0], p.from[:0], 0, nil
}

// read copies the part from a process.
func (p *part) read(pid int) {
	to, from := p.to, p.from
	for len(to) > 0 {
		k := min(len(to), maxIov)
		n, err := unix.ProcessVMReadv(pid, to[:k], from[:k], 0)
		switch {
		case err != nil:
			p.err = explain(pid, err)
			return
		case n <= 0:
			p.err = explain(pid, unix.EFAULT)
			return
		}
		// It may stop at the end of an element, or anywhere in one.
		for n > 0 {
			if n < from[0].Len {
				left := from[0].Len - n
				to[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(to[0].Base), n))
				to[0].SetLen(left)
				from[0] = unix.RemoteIovec{Base: from[0].Base + uintptr(n), Len: left}
				break
			}
			n -= from[0].Len
			to, from = to[1:], from[1:]
		}
	}
}

// explain says whose memory it was, and what to do about a refusal.
func explain(pid int, errno error) error {
	err := fmt.Errorf("process %d: %w", pid, os.NewSyscallError("process_vm_readv", errno))
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: run both ends as one user, with ptrace allowed (kernel.yama.ptrace_scope at most 1; in containers, CAP_SYS_PTRACE)", err)
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("%w: it has ended", err)
	}
	return err
}
