package socket

import (
	"sync"
	"time"
)

// Precedence has bulk wait at the initiator while something small waits for its answer from a target.
// Where both are on one machine, who sends bulk takes the CPU from who is to answer; where they are
// not, it fills the queue that the small one has to pass. What the sockets hold of bulk keeps the
// other end busy meanwhile.
//
//	small          frame ──────────────► ack
//	bulk     frame ──►      waits        frame ──►
//
// Bulk gives way once a MiB, for giveWay at most, and only where something small was sent within stale.
// So where something small is always under way a connection carries 2 GB/s of bulk all the same.
//
// There is one for the process, as its rails share the CPUs.
type precedence struct {
	mu     sync.Mutex
	small  int       // frames that wait for their answers
	latest time.Time // when the last of them was sent
	none   chan struct{}
}

const (
	// giveWay is three times what a small frame takes between two busy processes of one machine.
	giveWay = 300 * time.Microsecond
	// stale is where the answer has a long way, or waits for something else than bulk.
	stale = 3 * time.Millisecond
)

var sharedPrecedence precedence

// sent says that something small is on its way.
func (p *precedence) sent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.small++
	p.latest = time.Now()
}

// answered says that it has been answered, or is lost.
func (p *precedence) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.small--; p.small == 0 && p.none != nil {
		close(p.none)
		p.none = nil
	}
}

// A mover is who sends bulk over one connection.
type mover struct{ bytes int64 } // since it gave way

// due says before so many bytes are sent whether they give way first.
func (m *mover) due(bytes int64) bool {
	if bytes <= lightBytes {
		return false
	}
	if m.bytes += bytes; m.bytes < frameBytes {
		return false
	}
	m.bytes = 0
	return true
}

// wait lets what is small go first.
func (p *precedence) wait() {
	p.mu.Lock()
	if p.small == 0 || time.Since(p.latest) > stale {
		p.mu.Unlock()
		return
	}
	if p.none == nil {
		p.none = make(chan struct{})
	}
	none := p.none
	p.mu.Unlock()
	over := time.NewTimer(giveWay)
	defer over.Stop()
	select {
	case <-none:
	case <-over.C:
	}
}
