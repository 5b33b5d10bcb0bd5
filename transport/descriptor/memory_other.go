//go:build !linux

package descriptor

import "errors"

var errLinux = errors.New("memory by a descriptor: on Linux only")

// Map maps memory of a memfd.
func Map(int, int64, int) ([]byte, func() error, error) { return nil, nil, errLinux }

// Reserve has addresses for memory of a dma-buf.
func Reserve(int, int64, int) ([]byte, func() error, error) { return nil, nil, errLinux }

func duplicate(int) (int, error) { return -1, errLinux }

func giveBack(int, []byte) error { return errLinux }
