package capi

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A Handle names an engine of the process, or a segment, target or batch of one. Zero is none.
type Handle uint64

var handles atomic.Uint64

func newHandle() Handle { return Handle(handles.Add(1)) }

// A Table is the engines of a process. Its methods may be called from any goroutine.
type Table struct {
	mu      sync.RWMutex
	engines map[Handle]*Engine
}

// Open starts an engine.
func (t *Table) Open(o Options) (Handle, error) {
	e, err := Open(o)
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.engines == nil {
		t.engines = make(map[Handle]*Engine)
	}
	h := newHandle()
	t.engines[h] = e
	return h, nil
}

// Engine finds an engine that is open.
func (t *Table) Engine(h Handle) (*Engine, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if e := t.engines[h]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w: engine %d", ErrHandle, h)
}

// Close closes an engine, and forgets it first: of two calls one finds it.
func (t *Table) Close(h Handle) error {
	t.mu.Lock()
	e := t.engines[h]
	delete(t.engines, h)
	t.mu.Unlock()
	if e == nil {
		return fmt.Errorf("%w: engine %d", ErrHandle, h)
	}
	return e.Close()
}
