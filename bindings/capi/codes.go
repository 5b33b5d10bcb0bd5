package capi

import (
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"unicode/utf8"

	"kvferry/internal/config"
	"kvferry/transport"
)

// A Code is an error as C has it, KVF_ERR_... of kvferry.h. They are negative, so that a
// function may return a count or one of them.
type Code int32

const (
	CodeOK            Code = 0
	CodeInvalid       Code = -1  // an argument, or a field of one
	CodeHandle        Code = -2  // no such engine, segment, target or batch
	CodeForked        Code = -3  // the process was forked with the library in it; C alone returns it
	CodeUnsupported   Code = -4  // this library cannot do that
	CodeSpace         Code = -5  // the caller's buffer is too small
	CodeInternal      Code = -6  // a fault of the library's
	CodeSystem        Code = -7  // what the operating system said
	CodeClosed        Code = -8  // the engine or segment is closed
	CodeNotRegistered Code = -9  // local memory in no registered segment
	CodeNoPath        Code = -10 // no rail here reaches one of the peer's
	CodeUnreachable   Code = -11 // the peer cannot be connected
	CodeDeadline      Code = -12 // the batch's time was up
	CodeCanceled      Code = -13 // the batch was canceled
	CodeBadKey        Code = -14 // the peer has closed the segment
	CodeBounds        Code = -15 // outside what the peer has opened
	CodeAccess        Code = -16 // not in that direction
	CodeUnconfirmed   Code = -17 // the segment was closed after the batch may have come
	CodeBusy          Code = -18 // too much waits to be taken, here or at the peer
	CodeProtocol      Code = -19 // the peer speaks something else
)

var (
	// ErrHandle: a handle that is none, or of something that is closed.
	ErrHandle = errors.New("no such handle, or it is closed")
	// ErrUnsupported: what the interface has a place for and this library cannot do.
	ErrUnsupported = errors.New("not supported")
	// ErrSpace: a buffer that is too small.
	ErrSpace = errors.New("the buffer is too small")
	// ErrFull: more batches than an engine keeps.
	ErrFull  = errors.New("too many batches")
	errPanic = errors.New("panic in the library")
)

// codes are searched in this order: an expired deadline names the last failure behind it, and
// ErrUnconfirmed comes with ErrBadKey.
var codes = []struct {
	err  error
	code Code
}{
	{errPanic, CodeInternal},
	{ErrHandle, CodeHandle},
	{ErrUnsupported, CodeUnsupported},
	{ErrSpace, CodeSpace},
	{ErrFull, CodeBusy},
	{transport.ErrDeadline, CodeDeadline},
	{transport.ErrCanceled, CodeCanceled},
	{transport.ErrUnreachable, CodeUnreachable},
	{net.ErrClosed, CodeClosed},
	{transport.ErrUnconfirmed, CodeUnconfirmed},
	{transport.ErrBadKey, CodeBadKey},
	{transport.ErrBounds, CodeBounds},
	{transport.ErrAccess, CodeAccess},
	{transport.ErrNotRegistered, CodeNotRegistered},
	{transport.ErrNoPath, CodeNoPath},
	{transport.ErrBusy, CodeBusy},
	{transport.ErrProtocol, CodeProtocol},
	{transport.ErrInvalid, CodeInvalid},
}

// CodeOf is the code of an error.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	var fault *config.Fault
	if errors.As(err, &fault) {
		return CodeInvalid
	}
	return CodeSystem
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", transport.ErrInvalid, fmt.Sprintf(format, args...))
}

// Call runs what a function of the C interface does: it returns what f returns, or the code
// of f's error, whose text it puts into text, ending in a zero byte. A panic is an error.
func Call(text []byte, f func() (int, error)) (result int32) {
	defer func() {
		if p := recover(); p != nil {
			result = fail(text, fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack()))
		}
	}()
	n, err := f()
	if err != nil {
		return fail(text, err)
	}
	return int32(n)
}

func fail(text []byte, err error) int32 {
	PutText(text, err.Error())
	return int32(CodeOf(err))
}

// PutText copies as much of s as there is room for, in whole runes, and a zero byte.
func PutText(to []byte, s string) {
	if len(to) == 0 {
		return
	}
	n := copy(to[:len(to)-1], s)
	for n < len(s) && n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	to[n] = 0
}
