//go:build !unix

package transport

import "fmt"

// mapPages takes memory of the Go heap, which does not move either; its pages are taken
// when they are touched.
func mapPages(n int) ([]byte, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: memory of %d bytes", ErrInvalid, n)
	}
	return make([]byte, n), nil
}

func unmapPages([]byte) error { return nil }
