package socket

import (
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport"
	"kvferry/transport/pages"
)

// A region is registered memory. Connections hold it while they touch it.
type region struct {
	access transport.Access // what peers may do
	mem    []byte

	mu    sync.Mutex
	users map[*served]int
	dead  bool
	taken atomic.Bool   // its memory was unmapped or protected
	idle  chan struct{} // closed when dead and unused
}

// stallGrace is how long Deregister waits for peers' operations before it cuts
// their connections: a thousand times what 1 MiB takes.
const stallGrace = 200 * time.Millisecond

func newRegion(mem []byte, access transport.Access) *region {
	return &region{mem: mem, access: access, users: make(map[*served]int), idle: make(chan struct{})}
}

// acquire holds the region for a frame of c, until release; a connection may hold it several
// times. It is false once the region is being retired.
func (g *region) acquire(c *served) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return false
	}
	g.users[c]++
	c.hold()
	return true
}

// release gives back what acquire took. The last one to do so lets retire go on.
func (g *region) release(c *served) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users[c]--; g.users[c] == 0 {
		delete(g.users, c)
	}
	c.letGo()
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

// slice returns the part of the region that d means, if a peer may do op with it.
// near is of transport.Access.Check, from one slice of the region to the next.
func (g *region) slice(op transport.Op, d desc, near *int) ([]byte, code) {
	at, err := g.access.Check(op, int64(d.offset), int64(d.length), *near)
	if *near = at; err != nil {
		return nil, codeOf(err)
	}
	if d.length == 0 { // an immediate by itself, wherever it says it is
		return g.mem[:0:0], codeOK
	}
	if g.taken.Load() {
		return nil, codeMemory
	}
	return g.mem[d.offset : d.offset+d.length : d.offset+d.length], codeOK
}

// inspect looks whether the memory of regions is there as peers may use it, after it could not be touched. Slices of those
// whose memory is not are refused from then on.
func (r *Rail) inspect(held []*region) {
	for _, g := range held {
		if !pages.Permit(g.mem, g.access.May(transport.Write)) && !g.taken.Swap(true) {
			r.cfg.Logger.Error("transport/socket: registered memory is not there any more, and peers are refused: keep it mapped until its segment is closed",
				"rail", r.cfg.Name, "bytes", len(g.mem), "address", address(g.mem))
		}
	}
}

// regions is a rail's table of them.
type regions struct {
	mu    sync.RWMutex
	byKey map[transport.Key]*region
}

// get is the region that peers know by the key, or nil.
func (t *regions) get(key transport.Key) *region {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if g := t.byKey[key]; g != nil && !g.access.None() {
		return g
	}
	return nil
}
