//go:build !linux

package wire

import (
	"context"
	"errors"
)

// A Transport is for Linux only: it is made of epoll.
type Transport struct{}

// New fails where there is no epoll.
func New(Config) (*Transport, error) { return nil, errors.ErrUnsupported }

// Do is never called: there is no Transport.
func (*Transport) Do(context.Context, string, []byte, Handler) error { return errors.ErrUnsupported }

// Close does nothing.
func (*Transport) Close() {}
