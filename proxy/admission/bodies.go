// Package admission is what bounds the clients of a proxy before they have a request: how many
// connections there are and who makes room for whom, and the memory of bodies that are read
// and parsed. Bytes are bytes; clients go by their address. All of it may be used by several
// goroutines at once.
package admission

import (
	"cmp"
	"container/heap"
	"container/list"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Bodies bounds the memory of requests that are being read and parsed. A body takes
// its part before it is read, by its declared length, and gives it back once it has
// been parsed, but for what is kept of it.
//
// When memory is free again, the client that holds least comes first, and of its
// bodies the smallest. Bodies above SmallBody leave a quarter of the memory to those
// below, so that a request of the usual size does not wait for large ones. While
// somebody waits, a body that has not arrived within slowBody makes room, the
// oldest of the client that holds most first: it ends with ErrSlow.
type Bodies struct {
	size int64 // bytes of memory

	mu      sync.Mutex
	used    int64
	clients map[netip.Addr]*bodyClient
	seq     uint64
	again   *time.Timer // when one that is being read becomes slow and others wait
}

const (
	// bodyFactor is the memory that a byte of a body can take at most while it is
	// parsed: itself, two copies of the prompt, and four bytes for each token id,
	// which can be as short as one byte of text.
	bodyFactor = 8
	leastBody  = 512 // what the shortest counts as
	// bodiesMemory is for all bodies at once; eight of the default's 4 MiB, or 20,000
	// prompts of 256 token ids.
	bodiesMemory = 256 << 20

	SmallBody = 64 << 10
	slowBody  = time.Second
)

// ErrSlow ends the reading of a body that had to make room for others.
var ErrSlow = errors.New("the body came too slowly while others waited")

// bodyClient is what one client has of the memory.
type bodyClient struct {
	held    int64
	reading list.List // of *Hold, oldest first
	waiting bodyHeap
}

// A Hold is the part of the memory that one body has.
type Hold struct {
	all     *Bodies
	addr    netip.Addr
	bytes   int64
	seq     uint64
	since   time.Time     // when it was granted
	granted chan struct{} // closed then; nil for one that need not wait
	cut     func()        // ends the reading of this body
	ended   bool          // given back
	slow    bool          // was cut

	index   int           // in its client's waiting
	element *list.Element // in its client's reading; nil before and after
}

// NewBodies bounds bodies of which the longest has maxBody bytes.
func NewBodies(maxBody int64) *Bodies {
	return &Bodies{size: max(bodiesMemory, bodyFactor*maxBody*4/3), clients: make(map[netip.Addr]*bodyClient)}
}

// Take waits for the memory of a body of n bytes; after patience it gives up and returns
// late. Until Arrived is called, cut may be called: it must end the reading at once.
func (b *Bodies) Take(ctx context.Context, patience time.Duration, late error, addr netip.Addr, n int64, cut func()) (*Hold, error) {
	h := &Hold{all: b, addr: addr, bytes: bodyFactor * max(n, leastBody), cut: cut}
	b.mu.Lock()
	b.seq++
	h.seq = b.seq
	c := b.clients[addr]
	if c == nil {
		c = &bodyClient{}
		b.clients[addr] = c
	}
	heap.Push(&c.waiting, h)
	b.grant()
	if !h.since.IsZero() {
		b.mu.Unlock()
		return h, nil
	}
	h.granted = make(chan struct{})
	b.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, patience, late)
	defer cancel()
	select {
	case <-h.granted:
		return h, nil
	case <-ctx.Done():
		h.Release()
		return nil, context.Cause(ctx)
	}
}

// grant gives what there is to those who wait, and makes room for the first that it
// has none for. The caller holds mu.
func (b *Bodies) grant() {
	if b.again != nil {
		b.again.Stop()
		b.again = nil
	}
	for {
		turns := b.inTurn()
		if len(turns) == 0 {
			return
		}
		if c := b.next(turns); c != nil {
			h := heap.Pop(&c.waiting).(*Hold)
			c.held += h.bytes
			b.used += h.bytes
			h.since = time.Now()
			h.element = c.reading.PushBack(h)
			if h.granted != nil {
				close(h.granted)
			}
			continue
		}
		slow := b.slowest()
		if slow == nil {
			return // all that is held is being parsed
		}
		if age := time.Since(slow.since); age < slowBody {
			b.again = time.AfterFunc(slowBody-age, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.grant()
			})
			return
		}
		slow.slow = true
		b.end(slow)
		slow.cut()
	}
}

// next is the client whose body can be let in now. One that there is no room for
// holds up all after it, or they would take the room for ever; a large one, those of
// its kind. The caller holds mu.
func (b *Bodies) next(turns []*bodyClient) *bodyClient {
	large := true
	for _, c := range turns {
		h := c.waiting[0]
		switch isLarge := h.bytes > bodyFactor*SmallBody; {
		case isLarge && !large:
		case isLarge && b.used+h.bytes <= b.size/4*3, !isLarge && b.used+h.bytes <= b.size:
			return c
		case isLarge:
			large = false
		default:
			return nil
		}
	}
	return nil
}

// inTurn lists the clients that wait, the one that holds least first. The caller
// holds mu.
func (b *Bodies) inTurn() []*bodyClient {
	var waiting []*bodyClient
	for _, c := range b.clients {
		if len(c.waiting) > 0 {
			waiting = append(waiting, c)
		}
	}
	slices.SortFunc(waiting, func(x, y *bodyClient) int {
		return cmp.Or(cmp.Compare(x.held, y.held), cmp.Compare(x.waiting[0].seq, y.waiting[0].seq))
	})
	return waiting
}

// slowest is who has to make room next: the oldest that is still being read, of the
// client that holds most and has one. The caller holds mu.
func (b *Bodies) slowest() *Hold {
	var most *bodyClient
	for _, c := range b.clients {
		if c.reading.Len() > 0 && (most == nil || c.held > most.held) {
			most = c
		}
	}
	if most == nil {
		return nil
	}
	return most.reading.Front().Value.(*Hold)
}

// Arrived says that the whole body is there: it is not cut any more. It reports
// whether it has been.
func (h *Hold) Arrived() (slow bool) {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.clients[h.addr].read(h)
	return h.slow
}

// Keep lowers what a body that has been parsed counts as, to the bytes that are still of use. It then has
// them until Release.
func (h *Hold) Keep(bytes int64) {
	b := h.all
	b.mu.Lock()
	defer b.mu.Unlock()
	less := max(h.bytes-max(bytes, leastBody), 0)
	h.bytes -= less
	b.clients[h.addr].held -= less
	b.used -= less
	b.grant()
}

// More takes bytes more, for what has become of the body, and reports whether they are there. It does not wait:
// all that hold memory could wait for each other.
func (h *Hold) More(bytes int64) bool {
	b := h.all
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.ended || b.used+bytes > b.size {
		return false
	}
	h.bytes += bytes
	b.clients[h.addr].held += bytes
	b.used += bytes
	return true
}

// Release gives the memory back, or the position in the queue. A second call does nothing.
func (h *Hold) Release() {
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.end(h)
	h.all.grant()
}

// end takes h out. The caller holds mu.
func (b *Bodies) end(h *Hold) {
	if h.ended {
		return
	}
	h.ended = true
	c := b.clients[h.addr]
	if h.since.IsZero() {
		heap.Remove(&c.waiting, h.index)
	} else {
		c.held -= h.bytes
		b.used -= h.bytes
		c.read(h)
	}
	if c.held == 0 && len(c.waiting) == 0 {
		delete(b.clients, h.addr)
	}
}

// read takes h out of those that are being read. c may be nil: of a client that has
// nothing any more.
func (c *bodyClient) read(h *Hold) {
	if h.element != nil {
		c.reading.Remove(h.element)
		h.element = nil
	}
}

// bodyHeap has the smallest body first.
type bodyHeap []*Hold

func (q bodyHeap) Len() int { return len(q) }
func (q bodyHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q bodyHeap) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].bytes, q[j].bytes), cmp.Compare(q[i].seq, q[j].seq)) < 0
}

func (q *bodyHeap) Push(x any) {
	h := x.(*Hold)
	h.index = len(*q)
	*q = append(*q, h)
}

func (q *bodyHeap) Pop() any {
	old := *q
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return h
}
