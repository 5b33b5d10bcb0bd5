package transport

import (
	"cmp"
	"fmt"
	"slices"
)

// This file is how a batch's requests become slices.

// slice splits the requests and takes hold of the local segments.
func (b *Batch) slice(reqs []Request) error {
	n := 0
	for i := range reqs {
		r := &reqs[i]
		if r.Op != Write && r.Op != Read {
			return fmt.Errorf("%w: request %d: op %d", ErrInvalid, i, r.Op)
		}
		if len(r.Local) == 0 {
			return fmt.Errorf("%w: request %d: no local memory", ErrInvalid, i)
		}
		if !b.aim(r.Target) {
			return fmt.Errorf("%w: request %d: its target is closed, or of another peer than the batch's", ErrInvalid, i)
		}
		if info := &cmp.Or(r.Target, b.t).info; r.Offset < 0 || int64(len(r.Local)) > info.Length || r.Offset > info.Length-int64(len(r.Local)) {
			return fmt.Errorf("%w: request %d: %d bytes at offset %d of segment %q, %d bytes long",
				ErrBounds, i, len(r.Local), r.Offset, info.Name, info.Length)
		}
		b.bytes += int64(len(r.Local))
		b.reads = b.reads || r.Op == Read
	}
	size := b.sliceSize()
	for i := range reqs {
		n += (len(reqs[i].Local) + size - 1) / size
	}
	b.slices = make([]Slice, n)
	segs := *b.e.segs.Load()
	var seg *Segment
	n = 0
	for i := range reqs {
		r := &reqs[i]
		t := cmp.Or(r.Target, b.t)
		if seg == nil || len(segs) > 1 || !seg.holds(r.Local) {
			if seg = b.hold(segs, r.Local); seg == nil {
				return fmt.Errorf("%w: request %d", ErrNotRegistered, i)
			}
		}
		if (n == 0 || seg != b.slices[n-1].seg || t != b.slices[n-1].target) && !b.t.peer.joins(seg, t) {
			return fmt.Errorf("%w: request %d: none may be used both for %q here and %q there", ErrNoPath, i, seg.info.Name, t.info.Name)
		}
		for at := 0; at < len(r.Local); at += size {
			end := min(at+size, len(r.Local))
			s := &b.slices[n]
			s.Op, s.Local, s.Offset, s.batch, s.request, s.from, s.seg, s.target = r.Op, r.Local[at:end:end], r.Offset+int64(at), b, i, at, seg, t
			n++
		}
	}
	return nil
}

// aim takes hold of a target that a request names.
func (b *Batch) aim(t *Target) bool {
	if t == nil || t == b.t || slices.Contains(b.others, t) {
		return true
	}
	if t.peer != b.t.peer || !t.acquire() {
		return false
	}
	b.others = append(b.others, t)
	return true
}

// sliceSize is Config.SliceSize, or less where that many slices would be too few to
// spread over the paths: four for each, of 64 KiB at least, keep the last ones of a
// batch from waiting for each other long.
func (b *Batch) sliceSize() int {
	most, paths := b.e.cfg.SliceSize, int64(b.t.active())
	if paths == 1 || b.e.cfg.Select == Single {
		return most
	}
	const least = 64 << 10
	size := (b.bytes/(4*paths) + least - 1) / least * least
	return int(min(max(size, least), int64(most)))
}

// hold finds and acquires the segment around local: of several the smallest, whose
// location says most about the memory, and of those the one registered last. One that
// is being closed is none, unless the batch holds it already.
func (b *Batch) hold(segs []*Segment, local []byte) *Segment {
	for _, s := range segs { // in this order
		if !s.holds(local) {
			continue
		}
		if slices.Contains(b.segs, s) {
			return s
		}
		if s.acquire() {
			b.segs = append(b.segs, s)
			return s
		}
	}
	return nil
}

func (b *Batch) releaseAll() {
	for _, s := range b.segs {
		s.release()
	}
	for _, t := range b.others {
		t.release()
	}
	b.t.release()
}
