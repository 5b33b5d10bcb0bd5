package shm

import (
	"errors"
	"sync"

	"kvferry/transport"
	"kvferry/transport/descriptor"
)

// A region is registered memory, under a key.
type region struct {
	access transport.Access // what peers may do
	mem    []byte
	file   *descriptor.Memory // around mem; nil for other memory
	offset uint64             // of mem, in file

	mu     sync.Mutex
	grants map[*served]grantedSlot // of the connections that have asked for the key
	users  int                     // immediates that are being handled
	dead   bool
	idle   chan struct{} // closed when dead and without users
}

// A grantedSlot is where a connection finds out whether a key is open still.
type grantedSlot struct {
	slot       uint32
	generation uint64
}

// acquire holds the region for an immediate, until release. It is false once the region is being retired.
func (g *region) acquire() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return false
	}
	g.users++
	return true
}

func (g *region) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.users--; g.users == 0 && g.dead {
		close(g.idle)
	}
}

// grant gives a connection a slot for the key, the same one if it asks again.
func (g *region) grant(s *served) (grantedSlot, code) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dead {
		return grantedSlot{}, codeBadKey
	}
	if at, again := g.grants[s]; again {
		return at, codeOK
	}
	if len(g.access.Ranges()) > allRanges {
		return grantedSlot{}, codeFull
	}
	at, ok := s.open(g)
	if !ok {
		return at, codeFull
	}
	g.grants[s] = at
	return at, codeOK
}

// forget takes a connection's grant back: nothing is copied under it any more.
func (g *region) forget(s *served) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.grants, s)
}

// retire makes the region unusable and waits until it is unused. It returns an error if it was still in use
// when the rail's Close gave up.
func (g *region) retire() error {
	g.mu.Lock()
	g.dead = true
	if g.users == 0 {
		close(g.idle)
	}
	grants := make(map[*served]grantedSlot, len(g.grants))
	for s, at := range g.grants {
		grants[s] = at
	}
	g.mu.Unlock()
	for s, at := range grants {
		s.shut(at.slot)
	}
	<-g.idle
	var errs []error
	for s, at := range grants {
		if err := s.wait(at.slot, false); err != nil {
			errs = append(errs, err)
			continue
		}
		s.free(at.slot)
		g.forget(s)
	}
	return errors.Join(errs...)
}
