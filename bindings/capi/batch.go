package capi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/transport"
)

// What a batch does, and whether it may go past others, as numbers of C.
const (
	OpWrite        = int(transport.Write)
	OpRead         = int(transport.Read)
	PriorityBulk   = uint32(transport.Bulk)
	PriorityUrgent = uint32(transport.Urgent)
)

// BatchOptions are those of transport that a caller has.
type BatchOptions struct {
	UserData uint64        // comes back with the completion
	Timeout  time.Duration // 0 is the engine's
	Priority uint32        // whether it may go past others: a transport.Priority
	Tag      string        // names the serving request in errors
	Message  []byte        // for the peer, once all ranges are done; nil is none
}

// A batch is one under way. It is known before the engine has it.
type batch struct {
	under atomic.Pointer[transport.Batch]
}

// scratch is what ranges are made requests in: Submit keeps none.
var scratch = sync.Pool{New: func() any { return new([]transport.Request) }}

// Submit starts a batch of ranges, all READ or all WRITE, and returns its handle. The ranges
// are the caller's again, the memory that they name when the completion is there.
func (e *Engine) Submit(target Handle, op int, ranges []Range, o BatchOptions) (Handle, error) {
	if op != OpWrite && op != OpRead {
		return 0, invalid("op %d: use KVF_WRITE or KVF_READ", op)
	}
	if o.Priority > PriorityUrgent {
		return 0, invalid("priority %d: use KVF_BY_SIZE, KVF_BULK or KVF_URGENT", o.Priority)
	}
	h, b := newHandle(), &batch{}
	e.mu.Lock()
	targets, regions := e.targets[target], e.regions
	e.mu.Unlock()
	if targets == nil {
		return 0, fmt.Errorf("%w: target %d", ErrHandle, target)
	}
	reqs := scratch.Get().(*[]transport.Request)
	defer scratch.Put(reqs)
	var err error
	if *reqs, err = requests((*reqs)[:0], transport.Op(op), ranges, targets, regions); err != nil {
		return 0, err
	}
	e.mu.Lock()
	full := len(e.batches)+len(e.ended) >= mostBatches
	if !full {
		e.batches[h] = b
	}
	e.mu.Unlock()
	if full {
		return 0, fmt.Errorf("%w: %d are under way or wait to be polled", ErrFull, mostBatches)
	}
	b.under.Store(e.engine.Submit(targets[0], *reqs, transport.BatchOptions{
		Timeout: o.Timeout, Priority: transport.Priority(o.Priority), Tag: o.Tag, Message: o.Message,
		OnDone: func(done *transport.Batch) { e.end(h, o.UserData, done) },
	}))
	return h, nil
}
