package cma

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"kvferry/transport/process"
	"kvferry/transport/socket"
)

const (
	// maxCores share a copy. They take parts of partBytes in turn, or of the
	// maxParts-th: a core that is late, or busy with something else, then has
	// the others wait for one part, which takes some 40 us.
	maxCores  = 4
	maxParts  = 32
	partBytes = 256 << 10
)

// memory is that of another process. It is for one goroutine.
type memory struct {
	pid   int
	parts [maxParts]part
}

// A part of a copy, and how it ended.
type part struct {
	process.Vector
	err error
}

// attach opens the memory of the process at the other end of a connection.
func attach(c socket.Conn) (socket.Memory, error) {
	cred, err := process.Of(c.(*net.UnixConn))
	if err != nil {
		return nil, err
	}
	return &memory{pid: cred.PID}, nil
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
			m.parts[i].err = m.parts[i].Read(m.pid)
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
		p.Reset()
		p.err = nil
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
			if p.Len() == size {
				i++
				p = &m.parts[i]
			}
			n := min(len(b), size-p.Len())
			p.Add(b[:n], from)
			b, from = b[n:], from+uint64(n)
		}
	}
}
