//go:build cshared

// Libkvferry is kvferry's transfer engine as a C library: kvferry.h is its interface, package capi what
// is behind it. It is built with -tags cshared -buildmode=c-shared (make lib).
package main

// #include "kvferry.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"kvferry/bindings/capi"
	"kvferry/internal/version"
	"kvferry/transport"
)

func main() {} // of a library

// table is the engines that C has handles of.
var table capi.Table

// ballast has Go's garbage collector run after so many bytes of garbage and not after 4 MB already: a batch of 2,000
// ranges leaves 0.5 MB, and one that is submitted while the collector runs has to help it for milliseconds. Nothing touches
// it, so no memory is behind it.
var ballast []byte

func init() { ballast = make([]byte, 32<<20) }

// call runs f for a function of the interface.
func call(text *C.char, capacity C.size_t, f func() (int, error)) C.int {
	return C.int(capi.Call(unsafe.Slice((*byte)(unsafe.Pointer(text)), capacity), f))
}

// with runs f on an engine.
func with(engine C.kvf_engine, text *C.char, capacity C.size_t, f func(*capi.Engine) (int, error)) C.int {
	return call(text, capacity, func() (int, error) {
		e, err := table.Engine(capi.Handle(engine))
		if err != nil {
			return 0, err
		}
		return f(e)
	})
}

// given notes a handle for the caller.
func given[T ~uint64](to *T, h capi.Handle, err error) (int, error) {
	if err == nil && to != nil {
		*to = T(h)
	}
	return 0, err
}

func milliseconds(n C.uint32_t) time.Duration { return time.Duration(n) * time.Millisecond }

//export kvfBuild
func kvfBuild(text *C.char, capacity C.size_t) {
	capi.PutText(unsafe.Slice((*byte)(unsafe.Pointer(text)), capacity), version.String())
}

//export kvfEngineOpen
func kvfEngineOpen(options *C.kvf_engine_options, engine *C.kvf_engine, text *C.char, capacity C.size_t) C.int {
	return call(text, capacity, func() (int, error) {
		o, err := capi.Read[C.kvf_engine_options](unsafe.Pointer(options))
		if err != nil || engine == nil {
			return 0, missing("engine", engine == nil, err)
		}
		h, err := table.Open(capi.Options{
			Rails: C.GoString(o.rails), Selection: C.GoString(o.selection), Matrix: C.GoString(o.matrix), Log: C.GoString(o.log),
			SliceSize: int(o.slice_bytes), Timeout: milliseconds(o.timeout_ms), Name: C.GoString(o.name),
		})
		return given(engine, h, err)
	})
}

// missing is err, or says that a pointer is NULL.
func missing(name string, null bool, err error) error {
	if err == nil && null {
		err = fmt.Errorf("%w: %s is NULL", transport.ErrInvalid, name)
	}
	return err
}

//export kvfEngineClose
func kvfEngineClose(engine C.kvf_engine, text *C.char, capacity C.size_t) C.int {
	return call(text, capacity, func() (int, error) { return 0, table.Close(capi.Handle(engine)) })
}

//export kvfRegister
func kvfRegister(engine C.kvf_engine, memory *C.kvf_memory, segment *C.kvf_segment, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		m, err := capi.Read[C.kvf_memory](unsafe.Pointer(memory))
		if err != nil || segment == nil {
			return 0, missing("segment", segment == nil, err)
		}
		h, err := e.Register(capi.Memory{
			Kind: capi.Kind(m.kind), Address: m.address, Length: uint64(m.length), Flags: uint32(m.flags),
			Name: C.GoString(m.name), Location: C.GoString(m.location), Descriptor: int(m.descriptor), Offset: uint64(m.offset),
		})
		return given(segment, h, err)
	})
}

//export kvfDeregister
func kvfDeregister(engine C.kvf_engine, segment C.kvf_segment, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) { return 0, e.Deregister(capi.Handle(segment)) })
}

//export kvfAdvertise
func kvfAdvertise(engine C.kvf_engine, segments *C.kvf_segment, count C.size_t, buffer *C.char, space C.size_t, length *C.size_t, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		handles, err := capi.Slice[capi.Handle]("segments", unsafe.Pointer(segments), uint64(count))
		if err = missing("length", length == nil, err); err != nil {
			return 0, err
		}
		ad, err := e.Advertise(handles)
		if err != nil {
			return 0, err
		}
		*length = C.size_t(len(ad))
		if buffer == nil || uint64(space) < uint64(len(ad)) {
			return 0, fmt.Errorf("%w: %d bytes, and the advertisement has %d", capi.ErrSpace, space, len(ad))
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(buffer)), len(ad)), ad)
		return 0, nil
	})
}

//export kvfConnect
func kvfConnect(engine C.kvf_engine, advertisement *C.char, length C.size_t, target *C.kvf_target, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		ad, err := capi.Slice[byte]("advertisement", unsafe.Pointer(advertisement), uint64(length))
		if err = missing("target", target == nil, err); err != nil {
			return 0, err
		}
		h, err := e.Connect(ad)
		return given(target, h, err)
	})
}

//export kvfDisconnect
func kvfDisconnect(engine C.kvf_engine, target C.kvf_target, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) { return 0, e.Disconnect(capi.Handle(target)) })
}

//export kvfSubmit
func kvfSubmit(engine C.kvf_engine, target C.kvf_target, op C.int, ranges *C.kvf_range, count C.size_t, options *C.kvf_batch_options, batch *C.kvf_batch, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		o, err := capi.Read[C.kvf_batch_options](unsafe.Pointer(options))
		if err != nil {
			return 0, err
		}
		all, err := capi.Slice[capi.Range]("ranges", unsafe.Pointer(ranges), uint64(count))
		if err != nil {
			return 0, err
		}
		text, err := capi.Slice[byte]("message", o.message, uint64(o.message_length))
		if err != nil {
			return 0, err
		}
		h, err := e.Submit(capi.Handle(target), int(op), all, capi.BatchOptions{
			UserData: uint64(o.user_data), Timeout: milliseconds(o.timeout_ms), Priority: uint32(o.priority), Tag: C.GoString(o.tag), Message: text,
		})
		return given(batch, h, err)
	})
}

//export kvfCancel
func kvfCancel(engine C.kvf_engine, batch C.kvf_batch, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) { return 0, e.Cancel(capi.Handle(batch)) })
}

//export kvfPoll
func kvfPoll(engine C.kvf_engine, completions *C.kvf_completion, size, most C.size_t, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		if err := capi.CheckArray(unsafe.Pointer(completions), uint64(size), uint64(most)); err != nil {
			return 0, err
		}
		ended := e.Poll(int(most))
		for i := range ended {
			r := capi.RecordOf(&ended[i])
			capi.Write(unsafe.Pointer(completions), i, int(size), &r)
		}
		return len(ended), nil
	})
}

//export kvfReceive
func kvfReceive(engine C.kvf_engine, message *C.kvf_message, size C.size_t, buffer unsafe.Pointer, space C.size_t, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		if err := capi.CheckArray(unsafe.Pointer(message), uint64(size), 1); err != nil {
			return 0, err
		}
		to, err := capi.Slice[byte]("buffer", buffer, uint64(space))
		if err != nil {
			return 0, err
		}
		m, err := e.Receive(to)
		if m == nil {
			return 0, err
		}
		r := capi.LetterOf(m)
		capi.Write(unsafe.Pointer(message), 0, int(size), &r)
		return 1, err
	})
}

//export kvfDescriptor
func kvfDescriptor(engine C.kvf_engine, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) { return e.Descriptor() })
}

//export kvfRails
func kvfRails(engine C.kvf_engine, rails *C.kvf_rail, size, most C.size_t, text *C.char, capacity C.size_t) C.int {
	return with(engine, text, capacity, func(e *capi.Engine) (int, error) {
		if err := capi.CheckArray(unsafe.Pointer(rails), uint64(size), uint64(most)); err != nil {
			return 0, err
		}
		all := e.Rails()
		for i := range min(len(all), int(most)) {
			capi.Write(unsafe.Pointer(rails), i, int(size), &all[i])
		}
		return len(all), nil
	})
}
