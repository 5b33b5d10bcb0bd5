package socket

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A lookout sees what has come over connections of small frames while others move bulk. Go asks
// the kernel which sockets are ready when a thread has nothing else to do, and else every 10 ms;
// where the threads are busy with bulk, what is small would wait for that. So who has moved bulk
// looks, and lets the goroutine go first that waits for what is there: no thread has to be woken.
//
//	bulk     readv ──► look ──► readv ──► look ─┐ ┌──► readv ──► look
//	small                                       └─┘ frame, ack
//
// There is one for the process, as there is one netpoller. The kernel keeps the list of what is
// ready, so that a look costs the same for one connection and for thousands.
type lookout struct {
	n  atomic.Int32 // len(of)
	mu sync.Mutex
	fd int // an epoll of them; -1 without any
	of map[int32]*socket

	ready [8]unix.EpollEvent
}

var sharedLookout = lookout{fd: -1, of: make(map[int32]*socket)}

// light says of a connection whether its last frame was a small one.
func (s *socket) light(on bool) {
	if s.listed.Load() == on {
		return
	}
	l := &sharedLookout
	l.mu.Lock()
	defer l.mu.Unlock()
	s.listed.Store(on)
	if on {
		_ = s.rc.Control(func(fd uintptr) { l.add(s, fd) })
	} else if l.of[s.fd] == s { // and not a connection that has its number now
		_ = unix.EpollCtl(l.fd, unix.EPOLL_CTL_DEL, int(s.fd), nil)
		delete(l.of, s.fd)
	}
	l.n.Store(int32(len(l.of)))
	if len(l.of) == 0 && l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

// add puts a connection on the list. Without it the netpoller sees what comes, later.
func (l *lookout) add(s *socket, fd uintptr) {
	if l.fd < 0 {
		var err error
		if l.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
			return
		}
	}
	s.fd = int32(fd)
	if unix.EpollCtl(l.fd, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN, Fd: s.fd}) != nil {
		return
	}
	l.of[s.fd] = s // one that is there has been closed, and leaves later
}

// look is for who has moved so many bytes with a system call. If that was bulk, it returns when the others
// have been served.
func look(moved int) {
	l := &sharedLookout
	if moved <= lightBytes || l.n.Load() == 0 || !l.mu.TryLock() {
		return
	}
	n, _ := unix.EpollWait(l.fd, l.ready[:], 0)
	told := false
	for _, ev := range l.ready[:max(n, 0)] {
		if s := l.of[ev.Fd]; s != nil && s.waits.CompareAndSwap(true, false) {
			_ = s.c.SetReadDeadline(time.Unix(1, 0)) // ends its wait
			told = true
		}
	}
	l.mu.Unlock()
	if told {
		runtime.Gosched()
	}
}

// told says, of a connection that has waited, that look has ended that.
func (s *socket) told() bool {
	if s.waits.CompareAndSwap(true, false) {
		return false
	}
	sharedLookout.mu.Lock() // look has set the deadline
	defer sharedLookout.mu.Unlock()
	_ = s.c.SetReadDeadline(time.Time{})
	return true
}
