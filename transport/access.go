package transport

import "kvferry/transport/access"

// What keys open, see package access.
type (
	Access = access.Access
	Range  = access.Range
	Op     = access.Op
)

const (
	Write = access.Write // local memory to the target
	Read  = access.Read  // target to local memory
)

// Whole is access.Whole.
func Whole(n int64) Access { return access.Whole(n) }

// NewAccess is access.New.
func NewAccess(op Op, ranges []Range) (Access, error) { return access.New(op, ranges) }
