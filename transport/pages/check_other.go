//go:build !linux

package pages

// Check checks nothing on this system.
func Check([]byte) (writable bool, err error) { return true, nil }

// GuardBySystemCalls does nothing on this system.
func GuardBySystemCalls() {}

// CopyChecked is Copy on this system.
func CopyChecked(dst, src []byte) error { return Copy(dst, src) }
