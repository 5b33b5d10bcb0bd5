//go:build cshared

package main

// #include "kvferry.h"
import "C"

import (
	"unsafe"

	"kvferry/foreign"
)

// What kvferry.h says is what package foreign has: anything else does not compile. An index into an
// array of one that is not 0 is an error.
var one [1]struct{}

var (
	_ = one[unsafe.Sizeof(C.kvf_range{})-unsafe.Sizeof(foreign.Range{})]
	_ = one[unsafe.Offsetof(C.kvf_range{}.segment)-unsafe.Offsetof(foreign.Range{}.Segment)]
	_ = one[unsafe.Offsetof(C.kvf_range{}.local_stride)-unsafe.Offsetof(foreign.Range{}.LocalStride)]
	_ = one[unsafe.Sizeof(C.kvf_completion{})-unsafe.Sizeof(foreign.Record{})]
	_ = one[unsafe.Offsetof(C.kvf_completion{}.code)-unsafe.Offsetof(foreign.Record{}.Code)]
	_ = one[unsafe.Sizeof(C.kvf_message{})-unsafe.Sizeof(foreign.Letter{})]
	_ = one[unsafe.Offsetof(C.kvf_message{}.segment)-unsafe.Offsetof(foreign.Letter{}.Segment)]
	_ = one[unsafe.Sizeof(C.kvf_rail{})-unsafe.Sizeof(foreign.Rail{})]
	_ = one[unsafe.Offsetof(C.kvf_rail{}.downs)-unsafe.Offsetof(foreign.Rail{}.Downs)]

	_ = one[C.KVF_ERR_INVALID-foreign.CodeInvalid]
	_ = one[C.KVF_ERR_HANDLE-foreign.CodeHandle]
	_ = one[C.KVF_ERR_FORKED-foreign.CodeForked]
	_ = one[C.KVF_ERR_UNSUPPORTED-foreign.CodeUnsupported]
	_ = one[C.KVF_ERR_SPACE-foreign.CodeSpace]
	_ = one[C.KVF_ERR_INTERNAL-foreign.CodeInternal]
	_ = one[C.KVF_ERR_SYSTEM-foreign.CodeSystem]
	_ = one[C.KVF_ERR_CLOSED-foreign.CodeClosed]
	_ = one[C.KVF_ERR_NOT_REGISTERED-foreign.CodeNotRegistered]
	_ = one[C.KVF_ERR_NO_PATH-foreign.CodeNoPath]
	_ = one[C.KVF_ERR_UNREACHABLE-foreign.CodeUnreachable]
	_ = one[C.KVF_ERR_DEADLINE-foreign.CodeDeadline]
	_ = one[C.KVF_ERR_CANCELED-foreign.CodeCanceled]
	_ = one[C.KVF_ERR_BAD_KEY-foreign.CodeBadKey]
	_ = one[C.KVF_ERR_BOUNDS-foreign.CodeBounds]
	_ = one[C.KVF_ERR_ACCESS-foreign.CodeAccess]
	_ = one[C.KVF_ERR_UNCONFIRMED-foreign.CodeUnconfirmed]
	_ = one[C.KVF_ERR_BUSY-foreign.CodeBusy]
	_ = one[C.KVF_ERR_PROTOCOL-foreign.CodeProtocol]

	_ = one[C.KVF_WRITE-foreign.OpWrite]
	_ = one[C.KVF_READ-foreign.OpRead]
	_ = one[C.KVF_BULK-foreign.PriorityBulk]
	_ = one[C.KVF_URGENT-foreign.PriorityUrgent]
	_ = one[C.KVF_MEMORY_DMABUF-foreign.DMABuf]
	_ = one[C.KVF_MEMORY_MEMFD-foreign.Memfd]
	_ = one[C.KVF_PRIVATE-foreign.FlagPrivate]
)
