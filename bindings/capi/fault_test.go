package capi_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"unsafe"

	"kvferry/bindings/capi"
	"kvferry/transport"
	"kvferry/transport/rails"
)

// TestRangeFaults: a range that cannot be is Submit's error, or its batch's if only the peer's memory shows it.
// Nothing is read at a wrong address.
func TestRangeFaults(t *testing.T) {
	there, here := open(t), open(t)
	_, segment := memory(t, there, "kv", 1<<12)
	ours, _ := memory(t, here, "local", 1<<12)
	target := connect(t, here, there, segment)
	at := address(ours)
	for name, c := range map[string]struct {
		r    capi.Range
		code capi.Code
	}{
		"no bytes":                  {capi.Range{Local: at}, capi.CodeInvalid},
		"too many bytes":            {capi.Range{Local: at, Length: 1 << 60}, capi.CodeInvalid},
		"too many pieces":           {capi.Range{Local: at, Length: 1, Count: 1 << 21}, capi.CodeInvalid},
		"no address":                {capi.Range{Length: 1}, capi.CodeNotRegistered},
		"another address":           {capi.Range{Local: 4096, Length: 1}, capi.CodeNotRegistered},
		"before the memory":         {capi.Range{Local: at - 1, Length: 2}, capi.CodeNotRegistered},
		"behind the memory":         {capi.Range{Local: at + 4095, Length: 2}, capi.CodeNotRegistered},
		"runs out of the memory":    {capi.Range{Local: at, Length: 8, Count: 3, LocalStride: 2045}, capi.CodeNotRegistered},
		"runs back out of it":       {capi.Range{Local: at, Length: 8, Count: 2, LocalStride: -1}, capi.CodeNotRegistered},
		"runs around the addresses": {capi.Range{Local: at, Length: 8, Count: 1 << 20, LocalStride: 1 << 62}, capi.CodeInvalid},
		"runs below zero":           {capi.Range{Local: at, Length: 8, Count: 2, RemoteStride: -8}, capi.CodeInvalid},
		"another segment":           {capi.Range{Local: at, Length: 8, Segment: 1}, capi.CodeInvalid},
		"reserved":                  {capi.Range{Local: at, Length: 8, Reserved: 1}, capi.CodeUnsupported},
		"behind the target":         {capi.Range{Local: at, Length: 8, Remote: 4089}, capi.CodeBounds},
	} {
		good := capi.Range{Local: at, Length: 8}
		_, err := here.Submit(target, capi.OpWrite, []capi.Range{good, c.r}, capi.BatchOptions{})
		if err == nil {
			err = finish(t, here).Err
		} else if !strings.Contains(err.Error(), "range 1") {
			t.Errorf("%s: %v does not say which range", name, err)
		}
		if capi.CodeOf(err) != c.code {
			t.Errorf("%s: %v, code %d, want %d", name, err, capi.CodeOf(err), c.code)
		}
	}
	_, op := here.Submit(target, 2, nil, capi.BatchOptions{})
	_, priority := here.Submit(target, capi.OpRead, nil, capi.BatchOptions{Priority: 3})
	_, all := here.Submit(target, capi.OpRead, make([]capi.Range, 0), capi.BatchOptions{})
	if capi.CodeOf(op) != capi.CodeInvalid || capi.CodeOf(priority) != capi.CodeInvalid || all != nil {
		t.Errorf("op 2: %v, priority 3: %v, no ranges: %v", op, priority, all)
	}
	if c := finish(t, here); c.Err != nil || c.Bytes != 0 {
		t.Errorf("no ranges: %+v", c)
	}
}

func TestOpenFaults(t *testing.T) {
	for want, o := range map[string]capi.Options{
		"no rails":             {},
		"neither an address":   {Rails: "eth0"},
		`log level "loud"`:     {Rails: "cma", Log: "loud"},
		`"best": use one of`:   {Rails: "127.0.0.1:0", Selection: "best"},
		"SliceSize":            {Rails: "127.0.0.1:0", SliceSize: -1},
		"a second rail":        {Rails: "tcp/lo,tcp/lo"},
		"another process list": {Rails: taken(t)},
	} {
		e, err := capi.Open(o)
		if err == nil {
			e.Close()
		}
		if capi.CodeOf(err) != capi.CodeInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%+v: %v, code %d, want %q", o, err, capi.CodeOf(err), want)
		}
	}
}

// TestEveryNIC: rails that nobody has named.
func TestEveryNIC(t *testing.T) {
	if _, err := rails.EveryNIC(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	e, err := capi.Open(capi.Options{Rails: rails.Every})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if all := e.Rails(); len(all) == 0 || !strings.HasPrefix(string(all[0].Name[:]), "tcp/") {
		t.Errorf("%+v", all)
	}
}

// taken is an address where somebody listens.
func taken(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestMemoryFaults(t *testing.T) {
	e := open(t)
	var b byte
	for name, c := range map[string]struct {
		m    capi.Memory
		code capi.Code
	}{
		"no address":   {capi.Memory{Length: 1}, capi.CodeInvalid},
		"no bytes":     {capi.Memory{Address: unsafe.Pointer(&b)}, capi.CodeInvalid},
		"a dma-buf":    {capi.Memory{Kind: capi.DMABuf, Address: unsafe.Pointer(&b), Length: 1}, capi.CodeNoPath}, // over TCP
		"no memfd":     {capi.Memory{Kind: capi.Memfd, Address: unsafe.Pointer(&b), Length: 1, Descriptor: -1}, capi.CodeInvalid},
		"far offset":   {capi.Memory{Kind: capi.Memfd, Address: unsafe.Pointer(&b), Length: 1, Offset: 1 << 63}, capi.CodeInvalid},
		"another kind": {capi.Memory{Kind: 3, Address: unsafe.Pointer(&b), Length: 1}, capi.CodeInvalid},
		"flags":        {capi.Memory{Address: unsafe.Pointer(&b), Length: 1, Flags: 2}, capi.CodeUnsupported},
	} {
		if _, err := e.Register(c.m); capi.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdvertisementFaults(t *testing.T) {
	e := open(t)
	_, err := e.Advertise(nil)
	if capi.CodeOf(err) != capi.CodeInvalid {
		t.Errorf("no segments: %v", err)
	}
	for text, code := range map[string]capi.Code{
		``:                            capi.CodeInvalid,
		`{}`:                          capi.CodeUnsupported,
		`{"kvferry":2}`:               capi.CodeUnsupported,
		`{"kvferry":1,"segments":[]}`: capi.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":0}]}`:                                                           capi.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"rdma/x","addr":"a","key":"1"}]}]}`:          capi.CodeNoPath,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"tcp/x","addr":"127.0.0.1:1","key":1}]}]}`:   capi.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"tcp/x","addr":"127.0.0.1:1","key":"0"}]}]}`: capi.CodeInvalid,
	} {
		if _, err := e.Connect([]byte(text)); capi.CodeOf(err) != code {
			t.Errorf("%s: %v, code %d, want %d", text, err, capi.CodeOf(err), code)
		}
	}
}

func TestCodes(t *testing.T) {
	wrap := func(err error) error { return &transport.Error{Op: "write", Rail: "tcp/eth0", Err: err} }
	for want, err := range map[capi.Code]error{
		capi.CodeOK:          nil,
		capi.CodeDeadline:    wrap(fmt.Errorf("%w; last failure: %w", transport.ErrDeadline, transport.ErrUnreachable)),
		capi.CodeUnconfirmed: wrap(fmt.Errorf("%w: %w", transport.ErrUnconfirmed, transport.ErrBadKey)),
		capi.CodeBadKey:      wrap(transport.ErrBadKey),
		capi.CodeUnreachable: wrap(fmt.Errorf("%w: %w", transport.ErrUnreachable, net.ErrClosed)),
		capi.CodeClosed:      wrap(net.ErrClosed),
		capi.CodeAccess:      wrap(transport.ErrAccess),
		capi.CodeBusy:        wrap(transport.ErrBusy),
		capi.CodeProtocol:    wrap(transport.ErrProtocol),
		capi.CodeSystem:      errors.New("disk on fire"),
	} {
		if got := capi.CodeOf(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// TestCall: counts and codes come back, a panic is a code, and the text fits.
func TestCall(t *testing.T) {
	text := make([]byte, 16)
	said := func() string { s, _, _ := strings.Cut(string(text), "\x00"); return s }
	if n := capi.Call(text, func() (int, error) { return 7, nil }); n != 7 || said() != "" {
		t.Errorf("%d, %q", n, said())
	}
	n := capi.Call(text, func() (int, error) { return 7, errors.New("0123456789abcd\u00e9") })
	if n != int32(capi.CodeSystem) || said() != "0123456789abcd" {
		t.Errorf("%d, %q: a rune was cut", n, said())
	}
	text = make([]byte, 4096)
	n = capi.Call(text, func() (int, error) { return []int{}[len(text)], nil })
	if n != int32(capi.CodeInternal) || !strings.Contains(said(), "out of range") || !strings.Contains(said(), "fault_test.go") {
		t.Errorf("a panic: %d, %q", n, said())
	}
}

// TestStructs: a caller whose structs are shorter or longer than the library's.
func TestStructs(t *testing.T) {
	type options struct {
		Size uint32
		A    uint32
		B    uint64
	}
	read := func(caller ...uint64) (options, capi.Code) {
		o, err := capi.Read[options](unsafe.Pointer(&caller[0]))
		return o, capi.CodeOf(err)
	}
	const a = 5 << 32 // beside the size, on a little-endian machine
	for name, c := range map[string]struct {
		caller []uint64
		b      uint64
		code   capi.Code
	}{
		"as it is":                {[]uint64{16 | a, 7}, 7, capi.CodeOK},
		"older":                   {[]uint64{8 | a, 7}, 0, capi.CodeOK},
		"newer":                   {[]uint64{24 | a, 7, 0}, 7, capi.CodeOK},
		"newer, and makes use of": {[]uint64{24 | a, 7, 1}, 0, capi.CodeUnsupported},
		"no size":                 {[]uint64{a, 7}, 0, capi.CodeInvalid},
		"no struct":               {[]uint64{1<<31 | a, 7}, 0, capi.CodeInvalid},
	} {
		o, code := read(c.caller...)
		if code != c.code || code == capi.CodeOK && (o.A != 5 || o.B != c.b) {
			t.Errorf("%s: %+v, code %d", name, o, code)
		}
	}
	if o, err := capi.Read[options](nil); err != nil || o != (options{}) {
		t.Errorf("NULL: %+v, %v", o, err)
	}

	for _, words := range []int{1, 2, 3} { // of each element at the caller
		array := []uint64{9, 9, 9, 9, 9, 9, 9}
		capi.Write(unsafe.Pointer(&array[0]), 1, 8*words, &[2]uint64{1, 2})
		want := []uint64{9, 9, 9, 9, 9, 9, 9}
		copy(want[words:2*words], []uint64{1, 2, 0})
		if fmt.Sprint(array) != fmt.Sprint(want) {
			t.Errorf("elements of %d words: %v, want %v", words, array, want)
		}
	}
	if capi.CodeOf(capi.CheckArray(nil, 16, 1)) != capi.CodeInvalid || capi.CodeOf(capi.CheckArray(unsafe.Pointer(new(int)), 0, 1)) != capi.CodeInvalid || capi.CheckArray(nil, 16, 0) != nil {
		t.Error("an array that cannot be is taken")
	}
}
