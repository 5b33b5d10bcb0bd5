//go:build !linux

package shm

import (
	"errors"

	"kvferry/transport"
)

// errUnsupported: memfd and pidfd are Linux's.
var errUnsupported = errors.New("a shm rail needs Linux: use a TCP rail")

// Rail is none on this system.
type Rail struct{ transport.Rail }

// New fails: memfd and pidfd are Linux's.
func New(cfg Config) (*Rail, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return nil, &transport.Error{Op: "listen", Rail: cfg.Name, Err: errUnsupported}
}

// Map is transport.MapMemory here.
func Map(size int) (mem []byte, release func() error, err error) { return transport.MapMemory(size) }
