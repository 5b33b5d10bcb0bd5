package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"kvferry/transport"
)

// Messages travel over a Unix socket that keeps their borders (SOCK_SEQPACKET), descriptors beside
// them. All integers are little endian.
//
//	initiator   hello    who the connection is
//	            ask      for what a key opens
//	            knock    there are immediates in the ring that were not answered in time
//	target      welcome  with the control page, and a probe
//	            bell     with the page to wake the target by, and the connection's number there
//	            grant    what the key opens, in several parts if it has many ranges; with the
//	                     memory's file, the first time
//	            told     there are answers to immediates
//	            forget   let go of a file
const (
	magic = "kvf-shm\x03" // the last byte is the version

	helloLen   = 8 + 16         // magic, name
	welcomeLen = 8 + 1 + 8 + 16 // magic, code, address of the probe, what stands there
	askLen     = 1 + 8 + 8      // type, sequence number, key
	shortLen   = 1              // type: a knock, or that something was told
	numberLen  = 1 + 4          // type, file or number: of forget and bell
	grantLen   = 3 + 8 + 8 + 4*4 + 8*3
	rangeLen   = 16   // offset, length
	maxRanges  = 1024 // in one part
	maxMessage = grantLen + maxRanges*rangeLen
	// maxSlots is how many keys a connection may use at a time.
	maxSlots = 1 << 16
	// allRanges is how many a key may have on this rail: 16 MiB of them.
	allRanges = 1 << 20
)

// types of messages
const (
	typeAsk byte = 1 + iota
	typeKnock
	typeGrant
	typeTold
	typeForget
	typeBell
)

// A code says how the target answers.
type code uint8

const (
	codeOK code = iota
	codeBadKey
	codeAccess
	codeDelivered // the immediate that is asked for
	codeFull      // no slot is left, or the key has too many ranges
	codeUnread    // of a welcome
	codeBusy      // the immediate is of a message that had to make room
	codeBounds    // the immediate is of no message
)

func (c code) err() error {
	switch c {
	case codeOK:
		return nil
	case codeBadKey:
		return transport.ErrBadKey
	case codeAccess:
		return transport.ErrAccess
	case codeDelivered:
		return transport.ErrDelivered
	case codeBusy:
		return transport.ErrBusy
	case codeBounds:
		return transport.ErrBounds
	case codeFull:
		return fmt.Errorf("%w: the target has no room for the key: it has more than %d ranges, or %d others are in use", transport.ErrInvalid, allRanges, maxSlots)
	}
	return fmt.Errorf("%w: the target answers with code %d", transport.ErrProtocol, c)
}

var errControl = fmt.Errorf("%w: the control page is too short", transport.ErrProtocol)

// errForm: a message is none of these.
var errForm = fmt.Errorf("%w: a message that is none of this rail's", transport.ErrProtocol)

func appendHello(b []byte, name transport.Name) []byte {
	return append(append(b, magic...), name[:]...)
}

func parseHello(b []byte) (name transport.Name, err error) {
	if len(b) != helloLen || string(b[:8]) != magic {
		return name, fmt.Errorf("%w: %.16q is not how a shm rail begins", transport.ErrProtocol, b)
	}
	return transport.Name(b[8:]), nil
}

type welcome struct {
	code  code
	at    uint64 // of the probe
	probe [16]byte
}

func (w *welcome) append(b []byte) []byte {
	b = append(append(b, magic...), byte(w.code))
	return append(binary.LittleEndian.AppendUint64(b, w.at), w.probe[:]...)
}

func parseWelcome(b []byte) (w welcome, err error) {
	if len(b) != welcomeLen || string(b[:8]) != magic {
		return w, fmt.Errorf("%w: %.16q is no welcome of a shm rail", transport.ErrProtocol, b)
	}
	w.code, w.at = code(b[8]), binary.LittleEndian.Uint64(b[9:])
	copy(w.probe[:], b[17:])
	return w, nil
}

// A request is an ask, or a knock, which has nothing more.
type request struct {
	typ byte
	seq uint64
	key transport.Key
}

func (r *request) append(b []byte) []byte {
	b = append(b, r.typ)
	if r.typ == typeKnock {
		return b
	}
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	return binary.LittleEndian.AppendUint64(b, uint64(r.key))
}

// parseRequest reads a message of an initiator that may be hostile.
func parseRequest(b []byte) (r request, err error) {
	switch {
	case len(b) == shortLen && b[0] == typeKnock:
		return request{typ: typeKnock}, nil
	case len(b) == askLen && b[0] == typeAsk:
		return request{typ: typeAsk, seq: binary.LittleEndian.Uint64(b[1:]), key: transport.Key(binary.LittleEndian.Uint64(b[9:]))}, nil
	}
	return r, errForm
}

// An answer is a grant or a part of one, or a told, a forget or a bell.
type answer struct {
	typ    byte
	number uint32 // of a bell: the connection's

	code code
	seq  uint64

	// Of a grant.
	may        byte   // bit 0: WRITE, bit 1: READ
	slot       uint32 // in the control page
	generation uint64
	file       uint32 // 0: the memory is no file
	total      uint32 // ranges, in all parts
	offset     uint64 // in the file, of the memory's first byte
	at         uint64 // its address in the target
	length     uint64 // of the memory
	ranges     []transport.Range
}

func (a *answer) append(b []byte) []byte {
	switch a.typ {
	case typeTold:
		return append(b, a.typ)
	case typeForget:
		return binary.LittleEndian.AppendUint32(append(b, a.typ), a.file)
	case typeBell:
		return binary.LittleEndian.AppendUint32(append(b, a.typ), a.number)
	}
	b = append(b, a.typ, byte(a.code), a.may)
	b = binary.LittleEndian.AppendUint64(b, a.seq)
	b = binary.LittleEndian.AppendUint64(b, a.generation)
	for _, v := range [...]uint32{a.slot, a.file, a.total, uint32(len(a.ranges))} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range [...]uint64{a.offset, a.at, a.length} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, r := range a.ranges {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Offset))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Length))
	}
	return b
}

// parseAnswer reads a message of a target that may be hostile: what it returns is in itself what a target may
// say. Whether it is an answer to anything, only the endpoint knows.
func parseAnswer(b []byte) (a answer, err error) {
	switch {
	case len(b) == shortLen && b[0] == typeTold:
		return answer{typ: typeTold}, nil
	case len(b) == numberLen && b[0] == typeForget:
		return answer{typ: typeForget, file: binary.LittleEndian.Uint32(b[1:])}, nil
	case len(b) == numberLen && b[0] == typeBell:
		return answer{typ: typeBell, number: binary.LittleEndian.Uint32(b[1:])}, nil
	case len(b) < grantLen || b[0] != typeGrant:
		return a, errForm
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	a = answer{
		typ: typeGrant, code: code(b[1]), may: b[2], seq: u64(3), generation: u64(11),
		slot: u32(19), file: u32(23), total: u32(27), offset: u64(35), at: u64(43), length: u64(51),
	}
	n := int(u32(31))
	switch {
	case n > maxRanges || len(b) != grantLen+n*rangeLen, a.total > allRanges, a.may > 3:
		return a, errForm
	case a.code != codeOK:
		return a, nil
	case a.slot >= maxSlots || a.generation == 0 || n == 0 || uint32(n) > a.total:
		return a, errForm
	}
	if a.offset+a.length < a.offset || a.at+a.length < a.at || a.length > 1<<62 {
		return a, errForm
	}
	a.ranges = make([]transport.Range, n)
	for i := range a.ranges {
		at := grantLen + i*rangeLen
		a.ranges[i] = transport.Range{Offset: int64(u64(at)), Length: int64(u64(at + 8))}
	}
	return a, nil
}

// access is what the ranges of a grant open: it holds the memory's own slices to them, before anything
// is copied.
func access(may byte, ranges []transport.Range, length uint64) (transport.Access, error) {
	var ops []transport.Op
	for _, op := range []transport.Op{transport.Write, transport.Read} {
		if may&(1<<op) != 0 {
			ops = append(ops, op)
		}
	}
	if len(ops) == 0 {
		return transport.Access{}, errForm
	}
	bare := len(ranges) == 1 && ranges[0] == transport.Range{}
	if bare {
		ranges = []transport.Range{{Length: 1}}
	}
	a, err := transport.NewAccess(ops[0], ranges)
	if len(ops) == 2 && err == nil {
		a = a.Both()
	}
	if bare && err == nil {
		a = a.Bare()
	}
	if err == nil {
		err = a.Within(int64(length))
	}
	if errors.Is(err, transport.ErrInvalid) {
		err = fmt.Errorf("%w: %w", errForm, err)
	}
	return a, err
}
