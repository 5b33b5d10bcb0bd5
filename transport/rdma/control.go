package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// The control connection is TCP. It begins with a greeting from each side, and
// then carries frames of a type and a fixed length: little-endian, no padding.
//
// A change of either is a new number in magic: versions that differ then refuse each other.
const (
	magic       = "kvferry-rdma/5\r\n"
	greetingLen = len(magic) + 16 + 1 + 4 + 16 + 2 + 1 + 8 + 4 + 1
	maxLost     = connection.MaxLost // lost connections in a greeting
)

// A greeting says where the sender's queue pairs are.
type greeting struct {
	name    transport.Name // of the connection, chosen by the initiator; the target repeats it
	depth   uint32         // Config.QueueDepth
	at      portAddr
	mailbox remoteMemory // of as many letters a pair as depth says
	pairs   []pairAddr
	lost    []transport.Secret // initiator: of connections that ended with writes unanswered
}

// remoteMemory is what a request needs to touch a peer's memory: where it begins,
// as the peer's device has it, and the key of the region around it.
type remoteMemory struct {
	addr uint64
	rkey uint32
}

func (g *greeting) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, magic...)
	b = append(b, g.name[:]...)
	b = append(b, byte(len(g.pairs)))
	b = le.AppendUint32(b, g.depth)
	b = append(b, g.at.gid[:]...)
	b = le.AppendUint16(b, g.at.lid)
	b = append(b, g.at.mtu)
	b = le.AppendUint64(b, g.mailbox.addr)
	b = le.AppendUint32(b, g.mailbox.rkey)
	b = append(b, byte(len(g.lost)))
	for _, p := range g.pairs {
		b = le.AppendUint32(b, p.number)
		b = le.AppendUint32(b, p.psn)
	}
	for _, s := range g.lost {
		b = append(b, s[:]...)
	}
	return b
}

// readGreeting reads a stranger's greeting. It takes 309 bytes of memory at most, whatever
// the greeting says.
func readGreeting(r io.Reader) (*greeting, error) {
	b := make([]byte, greetingLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	if string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: %q is not how a kvferry RDMA rail greets", transport.ErrProtocol, b[:len(magic)])
	}
	le := binary.LittleEndian
	b = b[len(magic):]
	g := &greeting{name: transport.Name(b[:16])}
	b = b[16:]
	n := int(b[0])
	g.depth = le.Uint32(b[1:])
	copy(g.at.gid[:], b[5:21])
	g.at.lid, g.at.mtu = le.Uint16(b[21:]), b[23]
	g.mailbox = remoteMemory{le.Uint64(b[24:]), le.Uint32(b[32:])}
	lost := int(b[36])
	switch {
	case n < 1 || n > maxQueuePairs:
		return nil, fmt.Errorf("%w: %d queue pairs, not 1 to %d", transport.ErrProtocol, n, maxQueuePairs)
	case g.depth < 1 || g.depth > maxQueueDepth:
		return nil, fmt.Errorf("%w: queues of %d, not 1 to %d", transport.ErrProtocol, g.depth, maxQueueDepth)
	case g.at.mtu < 1 || g.at.mtu > 5:
		return nil, fmt.Errorf("%w: MTU code %d, not 1 to 5", transport.ErrProtocol, g.at.mtu)
	case lost > maxLost:
		return nil, fmt.Errorf("%w: %d lost connections, not up to %d", transport.ErrProtocol, lost, maxLost)
	}
	b = make([]byte, 8*n+16*lost)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	for ; n > 0; n-- {
		g.pairs = append(g.pairs, pairAddr{le.Uint32(b), le.Uint32(b[4:])})
		b = b[8:]
	}
	for ; lost > 0; lost-- {
		g.lost = append(g.lost, transport.Secret(b[:16]))
		b = b[16:]
	}
	return g, nil
}

// A frame is about a key of the target's. All have one length, whatever they say: there are four
// at most for a key and a connection, and a reader needs no state.
//
//	initiator            target
//	resolve key      ─▶           may I use it, and how
//	                 ◀─  resolved  the memory, or length -1: no such key
//	                 ◀─  revoke    use it no more
//	revoked key      ─▶           nothing of mine touches it any more
//	                 ◀─  refused  a queue pair refused a request: your device will say which
type frame struct {
	typ    frameType
	key    transport.Key
	memory remoteMemory // resolved
	length int64        // resolved; -1 if the key is unknown
}

type frameType byte

const (
	frameResolve frameType = iota + 1
	frameResolved
	frameRevoke
	frameRevoked
	frameRefused // about no key; the connection ends with it
)

const frameLen = 1 + 8 + 8 + 4 + 8

func (f *frame) append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, byte(f.typ))
	b = le.AppendUint64(b, uint64(f.key))
	b = le.AppendUint64(b, f.memory.addr)
	b = le.AppendUint32(b, f.memory.rkey)
	return le.AppendUint64(b, uint64(f.length))
}

func readFrame(r io.Reader, f *frame) error {
	var b [frameLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return err
	}
	le := binary.LittleEndian
	f.typ = frameType(b[0])
	f.key = transport.Key(le.Uint64(b[1:]))
	f.memory = remoteMemory{le.Uint64(b[9:]), le.Uint32(b[17:])}
	f.length = int64(le.Uint64(b[21:]))
	if f.typ < frameResolve || f.typ > frameRefused {
		return fmt.Errorf("%w: frame of type %d", transport.ErrProtocol, f.typ)
	}
	if f.length < -1 {
		return fmt.Errorf("%w: memory of %d bytes", transport.ErrProtocol, f.length)
	}
	return nil
}

// A letter goes before an immediate: 32 bits of it fit into the request that
// announces it, so the rest is written to the target's mailbox first, and with it
// the key of its slice. 40 bytes go inline where the device takes 64.
const letterLen = 40

// A long letter has the length of a text, 2 bytes, and the text behind it, see immediate.Cut. The mailbox has longSlots
// of them for each pair, before its letters: 17 KiB, where all of a deep queue would be megabytes of pinned memory.
const (
	longLen   = letterLen + 2 + transport.MaxText
	longSlots = 32
)

// putLong returns how much of b the letter takes.
func putLong(b []byte, k transport.Key, m *transport.Imm) int {
	putLetter(b, k, m)
	n := copy(b[letterLen+2:], m.Text)
	binary.LittleEndian.PutUint16(b[letterLen:], uint16(n))
	return letterLen + 2 + n
}

// longLetter reads what a peer has written, with no more text than there is room for.
func longLetter(b []byte) (transport.Key, transport.Imm) {
	k, m := letter(b)
	n := min(int(binary.LittleEndian.Uint16(b[letterLen:])), transport.MaxText)
	m.Text = string(b[letterLen+2:][:n])
	return k, m
}

// announcement is the 32 bits of an immediate: its number, and whether its letter is a long one.
func announcement(number uint64, long bool) uint32 {
	v := uint32(number) << 1
	if long {
		v |= 1
	}
	return v
}

func putLetter(b []byte, k transport.Key, m *transport.Imm) {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(k))
	le.PutUint64(b[8:], m.Source)
	le.PutUint64(b[16:], m.Seq)
	le.PutUint64(b[24:], m.Floor)
	le.PutUint64(b[32:], m.Value)
}

// A verdict is a letter the other way: the immediate of this number was refused, and why. It
// goes before the count that acknowledges the immediate, and lies in the letter's slot.
var verdicts = [...]error{transport.ErrBadKey, transport.ErrBounds, transport.ErrAccess, transport.ErrDelivered, transport.ErrBusy}

func putVerdict(b []byte, number uint64, why error) {
	at := 0 // ErrBadKey, for what no verdict says
	for i, v := range verdicts {
		if errors.Is(why, v) {
			at = i
		}
	}
	putLetter(b, 0, &transport.Imm{Seq: number + 1, Value: uint64(at)})
}

// verdict is nil if the letter is none about the immediate: what lies there otherwise are
// zeros, or verdicts of before.
func verdict(b []byte, number uint64) error {
	if _, m := letter(b); m.Seq == number+1 && m.Value < uint64(len(verdicts)) {
		return verdicts[m.Value]
	}
	return nil
}

func letter(b []byte) (transport.Key, transport.Imm) {
	le := binary.LittleEndian
	return transport.Key(le.Uint64(b)),
		transport.Imm{Source: le.Uint64(b[8:]), Seq: le.Uint64(b[16:]), Floor: le.Uint64(b[24:]), Value: le.Uint64(b[32:])}
}
