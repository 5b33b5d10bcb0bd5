package socket

import (
	"errors"
	"fmt"
	"syscall"

	"kvferry/transport"
	"kvferry/transport/connection"
)

// An answer is a READ frame's data, with the regions held for it.
type answer struct {
	head  []byte // naks and data header
	parts [][]byte
	held  []*region
}

// read passes a READ frame to the sender.
func (s *served) read(r *request, descs []byte) error {
	if len(s.loans) == connection.QueueSlices {
		return fmt.Errorf("%w: %d READ frames are not released", transport.ErrProtocol, connection.QueueSlices)
	}
	a := &answer{head: s.resolve(r, descs, 0)}
	a.held = append(a.held, s.held...)
	clear(s.held)
	a.parts = make([][]byte, 1, 1+r.count)
	d := response{typ: data, seq: r.seq}
	for _, mem := range s.vec {
		if len(mem) > 0 {
			d.bytes += int64(len(mem))
			a.parts = append(a.parts, mem)
		}
	}
	a.head = d.append(a.head)
	if s.peer != nil {
		s.lend(r, a)
	}
	a.parts[0] = a.head
	if s.answers == nil {
		s.answers = make(chan *answer, maxAnswers)
		s.sender.Go(s.send)
	}
	s.answers <- a // a sender that cannot send drains it
	return nil
}

// send sends the data of READ frames.
func (s *served) send() {
	var err error
	for a := range s.answers {
		if err == nil {
			if err = s.sendAnswer(a); errors.Is(err, syscall.EFAULT) {
				s.rail.inspect(a.held)
			}
		}
		s.releaseHeld(a.held)
		if err != nil {
			s.cut()
		}
	}
}

// sendAnswer writes a READ frame's data: the regions are held until it is in the socket, or
// on a rail of references for as long as the loan.
func (s *served) sendAnswer(a *answer) error {
	s.wmu.Lock()
	err := writeFrame(s.c, s.out, s.peer, a.parts)
	s.wmu.Unlock()
	if err != nil {
		return err
	}
	return s.sendAck() // one that came due while the lock was held
}
