// Package pages maps memory outside the Go heap, as each system does it.
package pages

import "sync"

// Map maps size zero bytes. release gives them back; a second call of it does nothing.
func Map(size int) (mem []byte, release func() error, err error) {
	if mem, err = obtain(size); err != nil {
		return nil, nil, err
	}
	return mem, sync.OnceValue(func() error { return giveBack(mem) }), nil
}
