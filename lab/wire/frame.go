package wire

import "encoding/binary"

// A Frame is what a packet socket reads and writes with PACKET_VNET_HDR: a header of ten bytes
// (struct virtio_net_hdr in linux/virtio_net.h) that says what the NIC has still to do, and
// the Ethernet frame.
//
//	0 flags   1 what to cut: 0 nothing, 1 TCP over IPv4   2 length of all headers
//	4 bytes of payload a packet   6 where the checksum begins   8 and where in that it stands
//
// Numbers are in the machine's byte order; those from 6 on count from the Ethernet header.
type Frame []byte

const (
	prefix    = 10
	ethernet  = 14
	needsSum  = 1 // flag: the checksum's field has the sum of the pseudo-header only
	cutTCP4   = 1
	cutECN    = 0x80 // with what to cut: the first packet alone has the CWR flag
	flagFIN   = 0x01
	flagPSH   = 0x08
	flagCWR   = 0x80
	protoTCP  = 6
	mostFrame = 64<<10 + 256 // what a socket may read at once
)

// A layout is where the parts of a frame are, from the Ethernet header on.
type layout struct {
	ip, tcp, payload int
	size             int // bytes of payload of each packet but the last
	packets          int
}

// layout reports false if the frame is to be treated as one packet.
func (f Frame) layout() (l layout, ok bool) {
	if len(f) < prefix+ethernet+20+20 || f[1]&^cutECN != cutTCP4 {
		return l, false
	}
	data := f[prefix:]
	l.ip = ethernet
	l.tcp = l.ip + int(data[l.ip]&15)*4
	l.size = int(binary.NativeEndian.Uint16(f[4:]))
	if data[12] != 8 || data[13] != 0 || data[l.ip]>>4 != 4 || data[l.ip+9] != protoTCP || l.size == 0 || len(data) < l.tcp+20 {
		return l, false
	}
	l.payload = l.tcp + int(data[l.tcp+12]>>4)*4
	if len(data) <= l.payload {
		return l, false
	}
	l.packets = (len(data) - l.payload + l.size - 1) / l.size
	return l, l.packets > 1
}

// packets of a frame: how many it is on a wire.
func (f Frame) packets() int {
	if l, ok := f.layout(); ok {
		return l.packets
	}
	return 1
}

// cut is a frame of the packets from one to before another, in memory of its own.
func (f Frame) cut(from, to int) Frame {
	l, ok := f.layout()
	if !ok || from == 0 && to == l.packets {
		return append(Frame(nil), f...)
	}
	data := f[prefix:]
	low, high := l.payload+from*l.size, min(l.payload+to*l.size, len(data))
	piece := make(Frame, 0, prefix+l.payload+high-low)
	piece = append(piece, f[:prefix+l.payload]...)
	piece = append(piece, data[low:high]...)

	if to-from == 1 { // nothing is left to cut
		piece[1] = 0
		binary.NativeEndian.PutUint16(piece[4:], 0)
	}
	ip, tcp := piece[prefix+l.ip:], piece[prefix+l.tcp:]
	length := len(piece) - prefix - l.ip
	binary.BigEndian.PutUint16(ip[2:], uint16(length))
	binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(from)) // the packet's number
	header := ip[:l.tcp-l.ip]
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], ^sum(0, header))

	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(from*l.size))
	if from > 0 {
		tcp[13] &^= flagCWR
	}
	if to < l.packets {
		tcp[13] &^= flagFIN | flagPSH
	}
	piece[0] |= needsSum
	binary.NativeEndian.PutUint16(piece[6:], uint16(l.tcp))
	binary.NativeEndian.PutUint16(piece[8:], 16)
	binary.BigEndian.PutUint16(tcp[16:], pseudo(ip, length-(l.tcp-l.ip)))
	return piece
}

// pseudo is the sum of TCP's pseudo-header (RFC 9293, 3.1), which the NIC adds the rest to.
func pseudo(ip []byte, length int) uint16 { return sum(uint32(protoTCP)+uint32(length), ip[12:20]) }

// sum is the Internet checksum before it is inverted (RFC 1071).
func sum(from uint32, b []byte) uint16 {
	s := uint64(from)
	for ; len(b) >= 2; b = b[2:] {
		s += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		s += uint64(b[0]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// seal writes the checksum that the NIC would write, so that a change is seen by who checks it.
func (f Frame) seal() {
	if f[0]&needsSum == 0 {
		return
	}
	data := f[prefix:]
	start := int(binary.NativeEndian.Uint16(f[6:]))
	at := start + int(binary.NativeEndian.Uint16(f[8:]))
	if at+2 <= len(data) {
		binary.BigEndian.PutUint16(data[at:], ^sum(0, data[start:]))
	}
	f[0] &^= needsSum
	binary.NativeEndian.PutUint32(f[6:], 0)
}

// spoil changes the bit of a number, modulo the bits behind the Ethernet header.
func (f Frame) spoil(bit uint64) {
	data := f[prefix:]
	if len(data) <= ethernet {
		return
	}
	n := bit % (uint64(len(data)-ethernet) * 8)
	data[ethernet+n/8] ^= 1 << (n % 8)
}
