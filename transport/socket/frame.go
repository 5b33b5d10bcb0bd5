package socket

import (
	"encoding/binary"
	"fmt"
	"slices"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// All integers are little endian.
const (
	helloMagic    = "kvferry\x04" // the last byte is the version
	requestMagic  = 0x5152564b    // "KVRQ"
	responseMagic = 0x5352564b    // "KVRS"

	helloLen    = 144 // magic 8, name 16, lost count 8, lost secrets 7 x 16
	welcomeLen  = 16  // magic 8, code 8
	requestLen  = 24  // magic 4, op 1, flags 1, count 2, seq 8, bytes 6, length of the text 2
	descLen     = 24  // key 8, offset 8, length 8
	immLen      = 40  // source 8, seq 8, floor 8, value 8, slices before it that it depends on 8; its text follows
	responseLen = 24  // magic 4, type 1, code 1, index 2, seq 8, bytes 8

	maxLost   = connection.MaxLost
	maxCount  = 512 // slices in a frame: one writev with the header, one readv
	maxHeader = requestLen + maxCount*descLen + immLen + transport.MaxText
	// maxReferences is maxHeader on a rail of references.
	maxReferences = requestLen + maxCount*(descLen+addrLen)

	flagImm = 1
	// opRelease instead of the op: what was lent for READ frames up to this
	// sequence number has been copied.
	opRelease transport.Op = 2
	// opPoke is followed by bytes that mean nothing: the peer's kernel acknowledges them.
	opPoke transport.Op = 3
	// textShift is where the length of the text begins in the word that has the length of the bytes.
	textShift = 48
	mostPoke  = 64 << 10
)

// hello opens a connection. Lost are the secrets of the initiator's earlier connections
// that must be dead before this one is welcome.
type hello struct {
	name transport.Name
	lost []transport.Secret
}

func (h *hello) append(b []byte) []byte {
	b = append(b, helloMagic...)
	b = append(b, h.name[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(h.lost)))
	var lost [maxLost]transport.Secret
	copy(lost[:], h.lost)
	for i := range lost {
		b = append(b, lost[i][:]...)
	}
	return b
}

// parseHello reads helloLen bytes of a stranger's.
func parseHello(b []byte) (hello, error) {
	if string(b[:8]) != helloMagic {
		return hello{}, fmt.Errorf("%w: %q is not how a kvferry rail begins", transport.ErrProtocol, b[:16])
	}
	n := binary.LittleEndian.Uint64(b[24:])
	if n > maxLost {
		return hello{}, fmt.Errorf("%w: hello names %d lost connections, more than %d", transport.ErrProtocol, n, maxLost)
	}
	h := hello{name: transport.Name(b[8:24])}
	for i := range n {
		h.lost = append(h.lost, transport.Secret(b[32+16*i:]))
	}
	return h, nil
}

func appendWelcome(b []byte, c code) []byte {
	return binary.LittleEndian.AppendUint64(append(b, helloMagic...), uint64(c))
}

// appendFull is the welcome of a rail that is full: above the code and a byte of flags it has the
// limit.
func appendFull(b []byte, f *connection.Full) []byte {
	v := uint64(codeFull) | uint64(f.Limit)<<16
	if f.OneHost {
		v |= 1 << 8
	}
	if f.Fixed {
		v |= 1 << 9
	}
	return binary.LittleEndian.AppendUint64(append(b, helloMagic...), v)
}

func parseWelcome(b []byte) error {
	if string(b[:8]) != helloMagic {
		return fmt.Errorf("%w: %q is not how a kvferry rail answers", transport.ErrProtocol, b)
	}
	v := binary.LittleEndian.Uint64(b[8:])
	switch c := code(v); c {
	case codeOK:
		return nil
	case codeFull:
		return fmt.Errorf("the peer is full: %w", &connection.Full{Limit: int(v >> 16), OneHost: v>>8&1 != 0, Fixed: v>>9&1 != 0})
	case codeUnread:
		return errUnread
	default:
		return c.err()
	}
}

// request is the header of a WRITE or READ frame, or a release.
type request struct {
	op     transport.Op
	hasImm bool
	count  int    // descriptors
	seq    uint64 // 1, 2, ... on each connection
	bytes  int64  // sum of the descriptors' lengths
	text   int    // bytes of the immediate's
}

func (r *request) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, requestMagic)
	var flags byte
	if r.hasImm {
		flags |= flagImm
	}
	b = append(b, byte(r.op), flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(r.count))
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	return binary.LittleEndian.AppendUint64(b, uint64(r.bytes)|uint64(r.text)<<textShift)
}

// parseRequest reads requestLen bytes of a peer that may be hostile: what it returns is safe
// to reckon with, counts and sums fit.
func parseRequest(b []byte) (request, error) {
	r := request{
		op: transport.Op(b[4]), hasImm: b[5]&flagImm != 0,
		count: int(binary.LittleEndian.Uint16(b[6:])),
		seq:   binary.LittleEndian.Uint64(b[8:]),
		bytes: int64(binary.LittleEndian.Uint64(b[16:]) & (1<<textShift - 1)),
		text:  int(binary.LittleEndian.Uint16(b[16+textShift/8:])),
	}
	bad := func(what string) (request, error) {
		return request{}, fmt.Errorf("%w: request header % x: %s", transport.ErrProtocol, b[:requestLen], what)
	}
	switch {
	case binary.LittleEndian.Uint32(b) != requestMagic:
		return bad("magic")
	case r.text > transport.MaxText || r.text > 0 && !r.hasImm:
		return bad("text")
	case r.op == opRelease:
		if b[5] != 0 || r.count != 0 || r.bytes != 0 {
			return bad("release")
		}
		return r, nil
	case r.op == opPoke:
		if b[5] != 0 || r.count != 0 || r.seq != 0 || r.bytes < 0 || r.bytes > mostPoke {
			return bad("poke")
		}
		return r, nil
	case r.op != transport.Write && r.op != transport.Read:
		return bad("op")
	case b[5]&^flagImm != 0 || r.hasImm && r.op != transport.Write:
		return bad("flags")
	case r.count == 0 || r.count > maxCount:
		return bad("count")
	case r.bytes < 0 || r.bytes > int64(r.count)*transport.MaxSlice:
		return bad("length")
	}
	return r, nil
}

// rest is the length of what follows the header, before the bytes; on a rail of
// references it is all there is.
func (r *request) rest(references bool) int {
	n := r.count * descLen
	switch {
	case r.hasImm:
		n += immLen + r.text
	case references && r.op == transport.Write:
		n += r.count * addrLen
	}
	return n
}

// desc says where one slice's bytes are in the target.
type desc struct {
	key    transport.Key
	offset uint64
	length uint64
}

func (d *desc) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(d.key))
	b = binary.LittleEndian.AppendUint64(b, d.offset)
	return binary.LittleEndian.AppendUint64(b, d.length)
}

func parseDesc(b []byte) desc {
	_ = b[descLen-1]
	return desc{
		key:    transport.Key(binary.LittleEndian.Uint64(b)),
		offset: binary.LittleEndian.Uint64(b[8:]),
		length: binary.LittleEndian.Uint64(b[16:]),
	}
}

// checkLengths makes sure that the descriptors add up to the header's length:
// if they do not, the next frame cannot be found.
func checkLengths(r *request, descs []byte) error {
	var sum uint64
	for i := range r.count {
		n := parseDesc(descs[i*descLen:]).length
		if n > transport.MaxSlice {
			return fmt.Errorf("%w: slice %d of frame %d is %d bytes long", transport.ErrProtocol, i, r.seq, n)
		}
		sum += n // at most 512 x 1 GiB
	}
	if sum != uint64(r.bytes) {
		return fmt.Errorf("%w: frame %d has %d bytes, its slices %d", transport.ErrProtocol, r.seq, r.bytes, sum)
	}
	return nil
}

func appendImm(b []byte, m *transport.Imm, behind int) []byte {
	for _, v := range [...]uint64{m.Source, m.Seq, m.Floor, m.Value, uint64(behind)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, m.Text...)
}

// parseImm reads an immediate, with its text behind it.
func parseImm(b []byte) (m transport.Imm, behind uint64) {
	_ = b[immLen-1]
	return transport.Imm{
		Source: binary.LittleEndian.Uint64(b), Seq: binary.LittleEndian.Uint64(b[8:]),
		Floor: binary.LittleEndian.Uint64(b[16:]), Value: binary.LittleEndian.Uint64(b[24:]), Text: string(b[immLen:]),
	}, binary.LittleEndian.Uint64(b[32:])
}

type responseType uint8

const (
	ack responseType = 1 + iota
	nak
	data
	reset
)

// response is what the target sends, for data followed by the bytes, or by their
// addresses.
type response struct {
	typ   responseType
	code  code
	index int // nak: the slice in the frame
	seq   uint64
	bytes int64 // data
}

func (r *response) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, responseMagic)
	b = append(b, byte(r.typ), byte(r.code))
	b = binary.LittleEndian.AppendUint16(b, uint16(r.index))
	b = binary.LittleEndian.AppendUint64(b, r.seq)
	return binary.LittleEndian.AppendUint64(b, uint64(r.bytes))
}

// parseResponse reads responseLen bytes of a target that may be hostile. Whether its index
// and length belong to a frame, only the endpoint knows.
func parseResponse(b []byte) (response, error) {
	r := response{
		typ: responseType(b[4]), code: code(b[5]), index: int(binary.LittleEndian.Uint16(b[6:])),
		seq: binary.LittleEndian.Uint64(b[8:]), bytes: int64(binary.LittleEndian.Uint64(b[16:])),
	}
	if binary.LittleEndian.Uint32(b) != responseMagic || r.typ < ack || r.typ > reset || r.bytes < 0 {
		return response{}, fmt.Errorf("%w: response header % x", transport.ErrProtocol, b[:responseLen])
	}
	return r, nil
}

// A code says why the target refused.
type code uint8

const (
	codeOK code = iota
	codeBadKey
	codeBounds
	codeProtocol
	codeUnread // of a welcome
	codeAccess
	codeFull // of a welcome
	codeDelivered
	codeBusy
	codeMemory
)

// refusals has the error of each code that refuses a slice.
var refusals = [...]error{
	codeBadKey: transport.ErrBadKey, codeBounds: transport.ErrBounds, codeAccess: transport.ErrAccess,
	codeDelivered: transport.ErrDelivered, codeBusy: transport.ErrBusy, codeMemory: transport.ErrMemory,
}

// err is what a slice ends with, or the connection for a code that is of no slice.
func (c code) err() error {
	if int(c) < len(refusals) && refusals[c] != nil {
		return refusals[c]
	}
	return fmt.Errorf("%w: the target refused a frame", transport.ErrProtocol)
}

// codeOf is the code of an error that refuses a slice.
func codeOf(err error) code {
	return max(codeBadKey, code(max(slices.Index(refusals[:], err), 0)))
}
