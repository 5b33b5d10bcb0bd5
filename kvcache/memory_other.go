//go:build !linux

package kvcache

// Available is not known: only Linux is asked.
func Available() (n int64, ok bool) { return 0, false }
