//go:build cshared

package main

// #include "kvferry.h"
import "C"

import (
	"unsafe"

	"kvferry/bindings/capi"
)

// The constants and layouts of kvferry.h and package capi are the same: anything else does not compile. An index into an
// array of one that is not 0 is an error.
var one [1]struct{}

var (
	_ = one[unsafe.Sizeof(C.kvf_range{})-unsafe.Sizeof(capi.Range{})]
	_ = one[unsafe.Offsetof(C.kvf_range{}.segment)-unsafe.Offsetof(capi.Range{}.Segment)]
	_ = one[unsafe.Offsetof(C.kvf_range{}.local_stride)-unsafe.Offsetof(capi.Range{}.LocalStride)]
	_ = one[unsafe.Sizeof(C.kvf_completion{})-unsafe.Sizeof(capi.Record{})]
	_ = one[unsafe.Offsetof(C.kvf_completion{}.code)-unsafe.Offsetof(capi.Record{}.Code)]
	_ = one[unsafe.Sizeof(C.kvf_message{})-unsafe.Sizeof(capi.Letter{})]
	_ = one[unsafe.Offsetof(C.kvf_message{}.segment)-unsafe.Offsetof(capi.Letter{}.Segment)]
	_ = one[unsafe.Sizeof(C.kvf_rail{})-unsafe.Sizeof(capi.Rail{})]
	_ = one[unsafe.Offsetof(C.kvf_rail{}.downs)-unsafe.Offsetof(capi.Rail{}.Downs)]

	_ = one[C.KVF_ERR_INVALID-capi.CodeInvalid]
	_ = one[C.KVF_ERR_HANDLE-capi.CodeHandle]
	_ = one[C.KVF_ERR_FORKED-capi.CodeForked]
	_ = one[C.KVF_ERR_UNSUPPORTED-capi.CodeUnsupported]
	_ = one[C.KVF_ERR_SPACE-capi.CodeSpace]
	_ = one[C.KVF_ERR_INTERNAL-capi.CodeInternal]
	_ = one[C.KVF_ERR_SYSTEM-capi.CodeSystem]
	_ = one[C.KVF_ERR_CLOSED-capi.CodeClosed]
	_ = one[C.KVF_ERR_NOT_REGISTERED-capi.CodeNotRegistered]
	_ = one[C.KVF_ERR_NO_PATH-capi.CodeNoPath]
	_ = one[C.KVF_ERR_UNREACHABLE-capi.CodeUnreachable]
	_ = one[C.KVF_ERR_DEADLINE-capi.CodeDeadline]
	_ = one[C.KVF_ERR_CANCELED-capi.CodeCanceled]
	_ = one[C.KVF_ERR_BAD_KEY-capi.CodeBadKey]
	_ = one[C.KVF_ERR_BOUNDS-capi.CodeBounds]
	_ = one[C.KVF_ERR_ACCESS-capi.CodeAccess]
	_ = one[C.KVF_ERR_UNCONFIRMED-capi.CodeUnconfirmed]
	_ = one[C.KVF_ERR_BUSY-capi.CodeBusy]
	_ = one[C.KVF_ERR_PROTOCOL-capi.CodeProtocol]

	_ = one[C.KVF_WRITE-capi.OpWrite]
	_ = one[C.KVF_READ-capi.OpRead]
	_ = one[C.KVF_BULK-capi.PriorityBulk]
	_ = one[C.KVF_URGENT-capi.PriorityUrgent]
	_ = one[C.KVF_MEMORY_DMABUF-capi.DMABuf]
	_ = one[C.KVF_MEMORY_MEMFD-capi.Memfd]
	_ = one[C.KVF_PRIVATE-capi.FlagPrivate]
)
