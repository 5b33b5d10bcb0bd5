//go:build !unix

package pages

import "errors"

// Map takes memory of the Go heap, which does not move either; its pages are taken
// when they are touched.
func Map(n int) ([]byte, error) {
	if n < 1 {
		return nil, errors.New("less than a page")
	}
	return make([]byte, n), nil
}

// Unmap leaves them to the collector.
func Unmap([]byte) error { return nil }
