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
// endian, and the frame. owner says which port an address belongs to, or -1.
func runHub(ports []net.Conn, owner func(mac [6]byte) int) {
	queues := make([]chan []byte, len(ports))
	for i := range queues {
		queues[i] = make(chan []byte, hubQueue)
	}
	var readers, writers sync.WaitGroup
	for i, port := range ports {
		writers.Go(func() {
			gone := false
			for frame := range queues[i] {
				if !gone {
					_, err := port.Write(frame)
					gone = err != nil
				}
			}
		})
		readers.Go(func() {
			in := bufio.NewReaderSize(port, 1<<16)
			for {
				frame, err := readFrame(in)
				if err != nil {
					return
				}
				to := owner([6]byte(frame[4:10]))
				for j, q := range queues {
					if j == i || to >= 0 && to != j {
						continue
					}
					select {
					case q <- frame:
					default:
					}
				}
			}
		})
	}
	readers.Wait()
	for _, q := range queues {
		close(q)
	}
	writers.Wait()
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
