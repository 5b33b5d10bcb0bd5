package shm

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/pages"
)

// carry moves what is queued, unless somebody is at it: he sees what was queued meanwhile. It moves
// most bytes, without waiting for the peer, and leaves the rest to the endpoint's goroutine; or all there is, if
// most is negative. It reports whether an immediate was among it.
func (ep *endpoint) carry(most int64) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.carrying {
		return false
	}
	ep.carrying, ep.told = true, false
	for ep.err == nil {
		if len(ep.sent) > 0 && ep.collect() { // nobody awaits answers as long as there is more to carry
			continue
		}
		if len(ep.gone) > 0 {
			gone := ep.gone
			ep.gone = nil
			ep.mu.Unlock()
			ep.letGo(gone)
			ep.mu.Lock()
		}
		n, size := ep.next()
		if n == 0 {
			break
		}
		last := ep.queue[ep.head+n-1]
		if last.HasImm && len(ep.sent) == ringLen {
			break // collect goes on
		}
		if most >= 0 {
			if most -= size; most < 0 || size > 0 && ep.grants[last.Key] == nil {
				ep.wake()
				break
			}
		}
		ep.run = append(ep.run[:0], ep.queue[ep.head:ep.head+n]...)
		clear(ep.queue[ep.head : ep.head+n])
		if ep.head += n; ep.head == len(ep.queue) {
			ep.queue, ep.head = ep.queue[:0], 0
		}
		ep.mu.Unlock()
		ep.move(ep.run)
		clear(ep.run)
		ep.mu.Lock()
	}
	ep.carrying = false
	ep.rested.Broadcast()
	return ep.told
}

// next is how many slices come next: those with one key and direction, up to an immediate. The caller
// holds ep.mu.
func (ep *endpoint) next() (n int, size int64) {
	for _, s := range ep.queue[ep.head:] {
		first := ep.queue[ep.head]
		size += int64(len(s.Local))
		if n > 0 && (s.Key != first.Key || s.Op != first.Op || size > runBytes || n == runSlices) {
			return n, size - int64(len(s.Local))
		}
		if n++; s.HasImm {
			break
		}
	}
	return n, size
}

// move carries slices of one key and direction, of which the last may have an immediate.
func (ep *endpoint) move(run []*transport.Slice) {
	var tail *transport.Slice
	if last := run[len(run)-1]; last.HasImm {
		tail, run = last, run[:len(run)-1]
	}
	err := ep.copyAll(run, tail)
	if tail == nil {
		return
	}
	if err == nil && ep.clean < tail.Behind {
		err = ep.refused // of a slice that the immediate depends on
	}
	if ep.count(err); err != nil {
		ep.complete([]*transport.Slice{tail}, err)
		return
	}
	ep.signal(tail)
}

// count notes how a slice ended: immediates depend on those before them.
func (ep *endpoint) count(err error) {
	if ep.clean++; err != nil {
		ep.clean, ep.refused = 0, err
	}
}

// copyAll copies slices and completes them; tail's bytes it copies too, and returns how that ended.
func (ep *endpoint) copyAll(run []*transport.Slice, tail *transport.Slice) error {
	if len(run) == 0 && len(tail.Local) == 0 {
		return nil // the target looks at the key itself
	}
	key, op := transport.Key(0), transport.Write
	if len(run) > 0 {
		key, op = run[0].Key, run[0].Op
	} else {
		key = tail.Key
	}
	g, err := ep.grantOf(key)
	if err != nil {
		for range run {
			ep.count(err)
		}
		ep.complete(run, err)
		return err
	}
	ep.good, ep.pieces = ep.good[:0], ep.pieces[:0]
	for i, s := range run {
		err := ep.plan(g, op, s)
		if ep.count(err); err != nil {
			ep.complete(run[i:i+1], err)
			continue
		}
		ep.good = append(ep.good, s)
	}
	var refused error
	if tail != nil && ep.clean >= tail.Behind && len(tail.Local) > 0 {
		refused = ep.plan(g, op, tail)
	}
	err = ep.copy(g, key, op)
	if err != nil && len(ep.good) > 0 {
		ep.count(err)
	}
	if err == transport.ErrMemory && len(ep.pieces) > 1 && (len(ep.good) > 1 || len(ep.good) == 1 && tail != nil) {
		for _, s := range slices.Clone(ep.good) { // one by one, as the others are not to blame
			_ = ep.copyAll([]*transport.Slice{s}, nil) // completes it
		}
		if tail != nil {
			return ep.copyAll(nil, tail)
		}
		return nil
	}
	ep.complete(ep.good, err)
	clear(ep.good)
	clear(ep.pieces)
	if refused != nil {
		return refused
	}
	return err
}

// A piece is a part of a copy: memory here, and where in the target's.
type piece struct {
	local  []byte
	offset int64
}

// plan appends a slice's bytes to the pieces, if the key opens them: in parts of runBytes.
func (ep *endpoint) plan(g *grant, op transport.Op, s *transport.Slice) (err error) {
	if g.near, err = g.access.Check(op, s.Offset, int64(len(s.Local)), g.near); err != nil {
		return err
	}
	for at := 0; at < len(s.Local); at += runBytes {
		ep.pieces = append(ep.pieces, piece{s.Local[at:min(at+runBytes, len(s.Local))], s.Offset + int64(at)})
	}
	return nil
}

// copy copies the pieces, under an announcement for each runBytes of them.
func (ep *endpoint) copy(g *grant, key transport.Key, op transport.Op) error {
	for rest := ep.pieces; len(rest) > 0; {
		if err := ep.why(); err != nil {
			return err
		}
		n, size := 1, len(rest[0].local)
		for n < len(rest) && size+len(rest[n].local) <= runBytes {
			size += len(rest[n].local)
			n++
		}
		open, cut := ep.ctl.begin(g.slot, g.generation, op == transport.Read)
		if open {
			err := ep.transfer(g, op, rest[:n])
			if op == transport.Read { // was the memory held until now?
				open, cut = ep.ctl.standing(g.slot, g.generation)
			}
			copied()
			ep.ctl.end()
			switch {
			case errors.Is(err, unix.EFAULT) && open:
				return transport.ErrMemory
			case err != nil && open:
				return ep.lost(err)
			}
		}
		switch {
		case cut:
			return ep.lost(errCut)
		case !open:
			delete(ep.grants, key)
			return transport.ErrBadKey
		}
		rest = rest[n:]
	}
	return nil
}

var errCut = fmt.Errorf("the target has ended it")

// transfer copies pieces.
func (ep *endpoint) transfer(g *grant, op transport.Op, pieces []piece) error {
	if g.mem != nil {
		return ep.copyMapped(g, op, pieces)
	}
	for _, p := range pieces {
		copying(op, p.local, g.at+uint64(p.offset))
		ep.vector.Add(p.local, g.at+uint64(p.offset))
	}
	defer ep.vector.Reset()
	if op == transport.Write {
		return ep.vector.Write(ep.pid)
	}
	return ep.vector.Read(ep.pid)
}

// copyMapped copies to or from mapped memory. A page that the machine cannot give is an error, and
// not the end of this process.
func (ep *endpoint) copyMapped(g *grant, op transport.Op, some []piece) (err error) {
	for _, p := range some {
		copying(op, p.local, g.at+uint64(p.offset))
		to, from := g.mem.at(int64(g.offset)+p.offset, int64(len(p.local))), p.local
		if op == transport.Read {
			to, from = from, to
		}
		if err := pages.Copy(to, from); err != nil {
			return err
		}
	}
	return nil
}

// complete ends slices that were taken.
func (ep *endpoint) complete(run []*transport.Slice, err error) {
	if len(run) == 0 {
		return
	}
	var size int64
	for _, s := range run {
		size += int64(len(s.Local))
	}
	ep.mu.Lock()
	ep.room.Free(len(run), size)
	ep.mu.Unlock()
	transport.CompleteAll(run, err)
}

// grantOf is what a key opens: it asks the target, the first time.
func (ep *endpoint) grantOf(key transport.Key) (*grant, error) {
	if g := ep.grants[key]; g != nil {
		return g, nil
	}
	if len(ep.grants) >= manyGrants {
		for k, g := range ep.grants {
			if open, _ := ep.ctl.standing(g.slot, g.generation); !open {
				delete(ep.grants, k)
			}
		}
	}
	ep.seq++
	ep.asked.Store(ep.seq)
	defer ep.asked.Store(0)
	r := request{typ: typeAsk, seq: ep.seq, key: key}
	ep.message = r.append(ep.message[:0])
	if err := send(ep.c, ep.message, -1); err != nil {
		return nil, ep.lost(err)
	}
	var ranges []transport.Range
	for first := (*granted)(nil); ; {
		var a granted
		select {
		case a = <-ep.answers:
		case <-ep.broken:
			return nil, ep.why()
		}
		if a.code != codeOK {
			if err := a.code.err(); transport.Refused(err) || a.code == codeFull {
				return nil, err
			}
			return nil, ep.lost(a.code.err())
		}
		if a.fd >= 0 {
			if err := ep.keep(a.file, a.fd); err != nil {
				return nil, ep.lost(err)
			}
		}
		if first == nil {
			first = &a
		}
		ranges = append(ranges, a.ranges...)
		if a.slot != first.slot || a.generation != first.generation || a.total != first.total || uint32(len(ranges)) > a.total {
			return nil, ep.lost(errForm)
		}
		if uint32(len(ranges)) < a.total {
			continue
		}
		g, err := ep.accept(first, ranges)
		if err != nil {
			return nil, ep.lost(err)
		}
		ep.grants[key] = g
		return g, nil
	}
}

// accept checks a whole grant against the file that it is in.
func (ep *endpoint) accept(a *granted, ranges []transport.Range) (*grant, error) {
	g := &grant{grantedSlot: grantedSlot{a.slot, a.generation}, file: a.file, at: a.at}
	var err error
	if g.access, err = access(a.may, ranges, a.length); err != nil {
		return nil, err
	}
	if a.file != 0 {
		file := ep.files[a.file]
		if file == nil || a.offset+a.length > uint64(len(file.mem)) {
			return nil, fmt.Errorf("%w: memory that is not in the file that it is said to be in", transport.ErrProtocol)
		}
		g.mem, g.offset = file, a.offset
	}
	return g, nil
}

// keep maps a file that the target has passed.
func (ep *endpoint) keep(file uint32, fd int) error {
	if ep.files[file] != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("%w: a file that was passed before", transport.ErrProtocol)
	}
	mem, err := mapPeer(fd)
	if err == nil {
		ep.files[file] = newMapping(mem)
	}
	return err
}

// letGo unmaps files that are the target's no more: no key opens them.
func (ep *endpoint) letGo(gone []uint32) {
	for _, file := range gone {
		m := ep.files[file]
		delete(ep.files, file)
		for k, g := range ep.grants {
			if slices.Contains(gone, g.file) {
				delete(ep.grants, k)
			}
		}
		if m != nil {
			_ = unix.Munmap(m.mem)
		}
	}
}
