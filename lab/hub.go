package lab

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"sync"
)

// maxFrame is what QEMU takes in one frame: 64 KiB of segmentation offload and
// headers.
const maxFrame = 64<<10 + 4096

// hubQueue is how many frames a port holds back for a host that does not read,
// since it boots, is down, or is gone; what comes after is dropped, as in a
// switch. 512 frames are 2 MB, 200 ms at 80 Mbit/s.
const hubQueue = 512

// runHub forwards each frame of a port to the port of its destination, or to all
// others if it has none of them. It returns when all ports have ended, so
// close them to end it. Two hosts need no hub, their NICs are wired to each other.
//
// A frame on a port is as QEMU's stream sockets have it: 4 bytes of length, big
// endian, and the frame. owner says which port an address belongs to, or -1; it is
// called by all readers at once. A hub that learned addresses, as a switch does,
// would flood a host's first frames to all others: the plan of the lab is known.
//
// A port has a goroutine that reads and one that writes, with a queue between: a
// host that does not read must not keep the others' frames. A frame's buffer belongs
// to the queues that it is in and is never written again, so that a broadcast shares it.
func runHub(ports []net.Conn, owner func(mac [6]byte) int) {
	queues := make([]chan []byte, len(ports))
	for i := range queues {
		queues[i] = make(chan []byte, hubQueue)
	}
	var readers, writers sync.WaitGroup
	for i, port := range ports {
		writers.Go(func() { drainPort(port, queues[i]) })
		readers.Go(func() { forward(port, i, queues, owner) })
	}
	readers.Wait()
	for _, q := range queues {
		close(q) // only readers send on them
	}
	writers.Wait()
}

// forward puts each frame that port from sends into the queues of those it is for,
// until the port ends.
func forward(port io.Reader, from int, queues []chan []byte, owner func(mac [6]byte) int) {
	in := bufio.NewReaderSize(port, 1<<16)
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		to := owner([6]byte(frame[4:10])) // the destination is an Ethernet header's first field
		for i, q := range queues {
			if i == from || to >= 0 && to != i {
				continue
			}
			select {
			case q <- frame:
			default: // dropped: RoCE and TCP send it again
			}
		}
	}
}

// drainPort writes what is queued for a port. It goes on to empty the queue of a port
// that has failed, until the queue is closed.
func drainPort(port io.Writer, queue <-chan []byte) {
	gone := false
	for frame := range queue {
		if !gone {
			_, err := port.Write(frame)
			gone = err != nil
		}
	}
}

// readFrame returns a frame with its length in front.
func readFrame(in io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 14 || n > maxFrame { // less than an Ethernet header
		return nil, io.ErrUnexpectedEOF
	}
	frame := make([]byte, 4+n)
	copy(frame, head[:])
	_, err := io.ReadFull(in, frame[4:])
	return frame, err
}
