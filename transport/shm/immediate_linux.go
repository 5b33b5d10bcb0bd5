package shm

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"kvferry/transport"
)

// This file is how immediates go: first the initiator's side, then the target's.

// signal sends a slice's immediate, whose bytes are in place. Who carries awaits the answer then.
func (ep *endpoint) signal(s *transport.Slice) {
	ep.mu.Lock()
	n := ep.acked + uint32(len(ep.sent))
	ep.sent = append(ep.sent, s)
	if !ep.awaiting { // else that is how they wait
		ep.ctl.waits(waitsAtFutex, ep.acked)
	}
	ep.ctl.put(n, s.Key, s.Imm)
	ep.mu.Unlock()
	ep.told = true
	ep.bell.ring(ep.number)
}

// await completes immediates as they are answered, for answerWithin, unless somebody is at it. Those that
// are left then the target tells of over the socket; there it is knocked at, as it may not have heard the bell.
func (ep *endpoint) await() {
	deadline := time.Now().Add(answerWithin)
	ep.mu.Lock()
	if ep.awaiting || ep.err != nil { // the page may be gone
		ep.mu.Unlock()
		return
	}
	ep.awaiting = true
	ep.ctl.waits(waitsAtFutex, ep.acked)
	late := false
	for ep.err == nil && len(ep.sent) > 0 && !late {
		acked := ep.acked
		if ep.collect() {
			continue
		}
		if left := time.Until(deadline); left > 0 {
			ep.mu.Unlock()
			futexWait(ep.ctl.half(wordAnswered), acked, left)
			ep.mu.Lock()
			continue
		}
		late = ep.ctl.waits(waitsAtSocket, acked)
	}
	ep.awaiting = false
	ep.rested.Broadcast()
	ep.mu.Unlock()
	if late {
		knock := request{typ: typeKnock}
		if err := knockAt(ep.c, knock.append(nil)); err != nil {
			_ = ep.lost(err)
		}
	}
}

// heard is called when the target has said something over the socket: there may be answers that nobody awaits.
func (ep *endpoint) heard() {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	for ep.err == nil && len(ep.sent) > 0 {
		acked := ep.acked
		if !ep.collect() && (ep.awaiting || ep.ctl.waits(waitsAtSocket, acked)) {
			return
		}
	}
}

// collect completes the immediates that are answered, and reports whether there were some. The caller
// holds ep.mu, which is free meanwhile.
func (ep *endpoint) collect() bool {
	n := ep.ctl.answered() - ep.acked
	if n == 0 {
		return false
	}
	if n > uint32(len(ep.sent)) {
		ep.failed(fmt.Errorf("%w: answers to %d immediates, of %d", transport.ErrProtocol, n, len(ep.sent)))
		return false
	}
	if len(ep.sent) == ringLen {
		ep.wake()
	}
	done, errs := ep.sent[:n:n], make([]error, n)
	size := int64(0)
	for i, s := range done {
		how := ep.ctl.code(ep.acked + uint32(i))
		if how > uint64(codeBounds) || how == uint64(codeFull) || how == uint64(codeUnread) {
			ep.failed(fmt.Errorf("%w: an immediate is answered with code %d", transport.ErrProtocol, how))
			return false
		}
		errs[i] = code(how).err()
		size += int64(len(s.Local))
	}
	if ep.sent = ep.sent[n:]; len(ep.sent) == 0 {
		ep.sent = nil
	}
	ep.acked += n
	ep.room.Free(int(n), size)
	ep.mu.Unlock()
	for i, s := range done {
		s.Complete(errs[i])
	}
	ep.mu.Lock()
	return true
}

// knockAt sends a message that only wakes the peer: where its socket is full it has others to read, and will
// see then what this one is about.
func knockAt(c *net.UnixConn, b []byte) error {
	if err := sendNow(c, b); !errors.Is(err, unix.EAGAIN) {
		return err
	}
	return nil
}

// drain handles what the initiator has put into the ring, unless somebody is at it, who will see it.
func (s *served) drain() {
	if s.calls.Add(1) > 1 {
		return
	}
	s.ring.Lock()
	defer s.ring.Unlock()
	for {
		calls := s.calls.Load()
		s.handleAll()
		if s.calls.CompareAndSwap(calls, 0) {
			return
		}
	}
}

// handleAll handles immediates until there are none, or the connection is cut. The caller holds s.ring, which
// keeps the control page mapped.
func (s *served) handleAll() {
	for ctl := s.uncut(); ctl != nil; ctl = s.uncut() {
		n, ok := ctl.waiting(s.handled)
		if !ok {
			s.breach(fmt.Errorf("%w: %d immediates in a ring of %d", transport.ErrProtocol, n, ringLen))
			return
		}
		if n == 0 {
			return
		}
		s.idle.Store(time.Now().UnixNano())
		key, imm := ctl.take(s.handled)
		if ctl.answer(s.handled, s.immediate(key, imm)) {
			told := answer{typ: typeTold}
			_ = knockAt(s.c, told.append(nil)) // serve hears what is wrong with the socket
		}
		s.handled++
	}
}
