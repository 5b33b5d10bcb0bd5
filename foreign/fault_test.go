package foreign_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"unsafe"

	"kvferry/foreign"
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
		r    foreign.Range
		code foreign.Code
	}{
		"no bytes":                  {foreign.Range{Local: at}, foreign.CodeInvalid},
		"too many bytes":            {foreign.Range{Local: at, Length: 1 << 60}, foreign.CodeInvalid},
		"too many pieces":           {foreign.Range{Local: at, Length: 1, Count: 1 << 21}, foreign.CodeInvalid},
		"no address":                {foreign.Range{Length: 1}, foreign.CodeNotRegistered},
		"another address":           {foreign.Range{Local: 4096, Length: 1}, foreign.CodeNotRegistered},
		"before the memory":         {foreign.Range{Local: at - 1, Length: 2}, foreign.CodeNotRegistered},
		"behind the memory":         {foreign.Range{Local: at + 4095, Length: 2}, foreign.CodeNotRegistered},
		"runs out of the memory":    {foreign.Range{Local: at, Length: 8, Count: 3, LocalStride: 2045}, foreign.CodeNotRegistered},
		"runs back out of it":       {foreign.Range{Local: at, Length: 8, Count: 2, LocalStride: -1}, foreign.CodeNotRegistered},
		"runs around the addresses": {foreign.Range{Local: at, Length: 8, Count: 1 << 20, LocalStride: 1 << 62}, foreign.CodeInvalid},
		"runs below zero":           {foreign.Range{Local: at, Length: 8, Count: 2, RemoteStride: -8}, foreign.CodeInvalid},
		"another segment":           {foreign.Range{Local: at, Length: 8, Segment: 1}, foreign.CodeInvalid},
		"reserved":                  {foreign.Range{Local: at, Length: 8, Reserved: 1}, foreign.CodeUnsupported},
		"behind the target":         {foreign.Range{Local: at, Length: 8, Remote: 4089}, foreign.CodeBounds},
	} {
		good := foreign.Range{Local: at, Length: 8}
		_, err := here.Submit(target, foreign.OpWrite, []foreign.Range{good, c.r}, foreign.BatchOptions{})
		if err == nil {
			err = finish(t, here).Err
		} else if !strings.Contains(err.Error(), "range 1") {
			t.Errorf("%s: %v does not say which range", name, err)
		}
		if foreign.CodeOf(err) != c.code {
			t.Errorf("%s: %v, code %d, want %d", name, err, foreign.CodeOf(err), c.code)
		}
	}
	_, op := here.Submit(target, 2, nil, foreign.BatchOptions{})
	_, priority := here.Submit(target, foreign.OpRead, nil, foreign.BatchOptions{Priority: 3})
	_, all := here.Submit(target, foreign.OpRead, make([]foreign.Range, 0), foreign.BatchOptions{})
	if foreign.CodeOf(op) != foreign.CodeInvalid || foreign.CodeOf(priority) != foreign.CodeInvalid || all != nil {
		t.Errorf("op 2: %v, priority 3: %v, no ranges: %v", op, priority, all)
	}
	if c := finish(t, here); c.Err != nil || c.Bytes != 0 {
		t.Errorf("no ranges: %+v", c)
	}
}

func TestOpenFaults(t *testing.T) {
	for want, o := range map[string]foreign.Options{
		"no rails":             {},
		"neither an address":   {Rails: "eth0"},
		`log level "loud"`:     {Rails: "cma", Log: "loud"},
		`"best": use one of`:   {Rails: "127.0.0.1:0", Selection: "best"},
		"SliceSize":            {Rails: "127.0.0.1:0", SliceSize: -1},
		"a second rail":        {Rails: "tcp/lo,tcp/lo"},
		"another process list": {Rails: taken(t)},
	} {
		e, err := foreign.Open(o)
		if err == nil {
			e.Close()
		}
		if foreign.CodeOf(err) != foreign.CodeInvalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%+v: %v, code %d, want %q", o, err, foreign.CodeOf(err), want)
		}
	}
}

// TestEveryNIC: rails that nobody has named.
func TestEveryNIC(t *testing.T) {
	if _, err := rails.EveryNIC(); err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	e, err := foreign.Open(foreign.Options{Rails: rails.Every})
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
		m    foreign.Memory
		code foreign.Code
	}{
		"no address":   {foreign.Memory{Length: 1}, foreign.CodeInvalid},
		"no bytes":     {foreign.Memory{Address: unsafe.Pointer(&b)}, foreign.CodeInvalid},
		"a dma-buf":    {foreign.Memory{Kind: foreign.DMABuf, Address: unsafe.Pointer(&b), Length: 1}, foreign.CodeNoPath}, // over TCP
		"no memfd":     {foreign.Memory{Kind: foreign.Memfd, Address: unsafe.Pointer(&b), Length: 1, Descriptor: -1}, foreign.CodeInvalid},
		"far offset":   {foreign.Memory{Kind: foreign.Memfd, Address: unsafe.Pointer(&b), Length: 1, Offset: 1 << 63}, foreign.CodeInvalid},
		"another kind": {foreign.Memory{Kind: 3, Address: unsafe.Pointer(&b), Length: 1}, foreign.CodeInvalid},
		"flags":        {foreign.Memory{Address: unsafe.Pointer(&b), Length: 1, Flags: 2}, foreign.CodeUnsupported},
	} {
		if _, err := e.Register(c.m); foreign.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAdvertisementFaults(t *testing.T) {
	e := open(t)
	_, err := e.Advertise(nil)
	if foreign.CodeOf(err) != foreign.CodeInvalid {
		t.Errorf("no segments: %v", err)
	}
	for text, code := range map[string]foreign.Code{
		``:                            foreign.CodeInvalid,
		`{}`:                          foreign.CodeUnsupported,
		`{"kvferry":2}`:               foreign.CodeUnsupported,
		`{"kvferry":1,"segments":[]}`: foreign.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":0}]}`:                                                           foreign.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"rdma/x","addr":"a","key":"1"}]}]}`:          foreign.CodeNoPath,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"tcp/x","addr":"127.0.0.1:1","key":1}]}]}`:   foreign.CodeInvalid,
		`{"kvferry":1,"segments":[{"length":8,"rails":[{"rail":"tcp/x","addr":"127.0.0.1:1","key":"0"}]}]}`: foreign.CodeInvalid,
	} {
		if _, err := e.Connect([]byte(text)); foreign.CodeOf(err) != code {
			t.Errorf("%s: %v, code %d, want %d", text, err, foreign.CodeOf(err), code)
		}
	}
}

func TestCodes(t *testing.T) {
	wrap := func(err error) error { return &transport.Error{Op: "write", Rail: "tcp/eth0", Err: err} }
	for want, err := range map[foreign.Code]error{
		foreign.CodeOK:          nil,
		foreign.CodeDeadline:    wrap(fmt.Errorf("%w; last failure: %w", transport.ErrDeadline, transport.ErrUnreachable)),
		foreign.CodeUnconfirmed: wrap(fmt.Errorf("%w: %w", transport.ErrUnconfirmed, transport.ErrBadKey)),
		foreign.CodeBadKey:      wrap(transport.ErrBadKey),
		foreign.CodeUnreachable: wrap(fmt.Errorf("%w: %w", transport.ErrUnreachable, net.ErrClosed)),
		foreign.CodeClosed:      wrap(net.ErrClosed),
		foreign.CodeAccess:      wrap(transport.ErrAccess),
		foreign.CodeBusy:        wrap(transport.ErrBusy),
		foreign.CodeProtocol:    wrap(transport.ErrProtocol),
		foreign.CodeSystem:      errors.New("disk on fire"),
	} {
		if got := foreign.CodeOf(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}

// TestCall: counts and codes come back, a panic is a code, and the text fits.
func TestCall(t *testing.T) {
	text := make([]byte, 16)
	said := func() string { s, _, _ := strings.Cut(string(text), "\x00"); return s }
	if n := foreign.Call(text, func() (int, error) { return 7, nil }); n != 7 || said() != "" {
		t.Errorf("%d, %q", n, said())
	}
	n := foreign.Call(text, func() (int, error) { return 7, errors.New("0123456789abcd\u00e9") })
	if n != int32(foreign.CodeSystem) || said() != "0123456789abcd" {
		t.Errorf("%d, %q: a rune was cut", n, said())
	}
	text = make([]byte, 4096)
	n = foreign.Call(text, func() (int, error) { return []int{}[len(text)], nil })
	if n != int32(foreign.CodeInternal) || !strings.Contains(said(), "out of range") || !strings.Contains(said(), "fault_test.go") {
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
	read := func(caller ...uint64) (options, foreign.Code) {
		o, err := foreign.Read[options](unsafe.Pointer(&caller[0]))
		return o, foreign.CodeOf(err)
	}
	const a = 5 << 32 // beside the size, on a little-endian machine
	for name, c := range map[string]struct {
		caller []uint64
		b      uint64
		code   foreign.Code
	}{
		"as it is":                {[]uint64{16 | a, 7}, 7, foreign.CodeOK},
		"older":                   {[]uint64{8 | a, 7}, 0, foreign.CodeOK},
		"newer":                   {[]uint64{24 | a, 7, 0}, 7, foreign.CodeOK},
		"newer, and makes use of": {[]uint64{24 | a, 7, 1}, 0, foreign.CodeUnsupported},
		"no size":                 {[]uint64{a, 7}, 0, foreign.CodeInvalid},
		"no struct":               {[]uint64{1<<31 | a, 7}, 0, foreign.CodeInvalid},
	} {
		o, code := read(c.caller...)
		if code != c.code || code == foreign.CodeOK && (o.A != 5 || o.B != c.b) {
			t.Errorf("%s: %+v, code %d", name, o, code)
		}
	}
	if o, err := foreign.Read[options](nil); err != nil || o != (options{}) {
		t.Errorf("NULL: %+v, %v", o, err)
	}

	for _, words := range []int{1, 2, 3} { // of each element at the caller
		array := []uint64{9, 9, 9, 9, 9, 9, 9}
		foreign.Write(unsafe.Pointer(&array[0]), 1, 8*words, &[2]uint64{1, 2})
		want := []uint64{9, 9, 9, 9, 9, 9, 9}
		copy(want[words:2*words], []uint64{1, 2, 0})
		if fmt.Sprint(array) != fmt.Sprint(want) {
			t.Errorf("elements of %d words: %v, want %v", words, array, want)
		}
	}
	if foreign.CodeOf(foreign.CheckArray(nil, 16, 1)) != foreign.CodeInvalid || foreign.CodeOf(foreign.CheckArray(unsafe.Pointer(new(int)), 0, 1)) != foreign.CodeInvalid || foreign.CheckArray(nil, 16, 0) != nil {
		t.Error("an array that cannot be is taken")
	}
}
