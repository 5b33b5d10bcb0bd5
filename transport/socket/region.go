package socket

import (
	"sync"
	"time"

	"kvferry/transport"
)

// A region is registered memory. Connections hold it while they touch it.
type region struct {
	mu    sync.Mutex
	mem   []byte
	users map[*served]int
	dead  bool
	idle  chan struct{} // closed when dead and unused
}

// stallGrace is how long Deregister waits for peers' operations before it cuts
// their connections: a thousand times what 1 MiB takes.
const stallGrace = 200 * time.Millisecond

func newRegion(mem []byte) *region {
	return &region{mem: mem, users: make(map[*served]int), idle: make(chan struct{})}
}

func (g *region) acquire(c *served) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return false
	}
	g.users[c]++
	return true
}

func (g *region) release(c *served) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[c]--; g.users[c] == 0 {
		delete(g.users, c)
	}
	if g.dead && len(g.users) == 0 {
		close(g.idle)
	}
}

// retire makes the region unusable and waits until it is unused.
func (g *region) retire() {
	g.mu.Lock()
	g.dead = true
	if len(g.users) == 0 {
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	t := time.NewTimer(stallGrace)
	defer t.Stop()
	select {
	case <-g.idle:
		return
	case <-t.C:
	}
	g.mu.Lock()
	for c := range g.users {
		c.cut()
	}
	g.mu.Unlock()
	<-g.idle
}

// slice returns the range of the region that d means.
func (g *region) slice(d desc) ([]byte, code) {
	n := uint64(len(g.mem))
	if d.length > n || d.offset > n-d.length {
		return nil, codeBounds
	}
	return g.mem[d.offset : d.offset+d.length : d.offset+d.length], codeOK
}

// regions is a rail's table of them.
type regions struct {
	mu    sync.RWMutex
	byKey map[transport.Key]*region
}

func (t *regions) get(key transport.Key) *region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byKey[key]
}
