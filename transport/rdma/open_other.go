//go:build !cgo || !linux

package rdma

import "fmt"

func openDevice(*Config) (device, error) {
	return nil, fmt.Errorf("%w: the program was built without cgo: build it on Linux with CGO_ENABLED=1 and a C compiler", ErrNoVerbs)
}
