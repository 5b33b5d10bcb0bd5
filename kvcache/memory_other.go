//go:build !linux

package kvcache

// OutOfMemory is not known.
func OutOfMemory() int64 { return 0 }

// Available is not known: only Linux is asked.
func Available() (n int64, ok bool) { return 0, false }
