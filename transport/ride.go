package transport

// An immediate rides with the last slice of its batch if all slices are WRITEs to one target that are
// queued on one path in order: a rail applies those of one key in the order that they were
// posted, so the immediate comes after all of them, and costs no round trip of its own. In
// all other cases it is sent when every slice is acknowledged, see Batch.signal.
//
// If the connection is lost, nobody here knows whether the immediate was delivered. What was
// posted before it must not be sent again then: the memory is its owner's, who may have put it
// to another use. So the target is asked first, once it has ended the lost connection:
//
//	slices fail ──► again, and a question ──► ErrDelivered: the batch has completed
//	                                     ├──► nil: they are sent again, and the immediate after them
//	                                     └──► ErrBadKey: ErrUnconfirmed
type riding struct {
	run     Run
	on      *Slice   // the last slice, which has the immediate; nil if it does not ride, or not any more
	path    *path    // that lost it; nil before that
	again   []*Slice // copies of those that were lost with it, until the target has answered
	arrived bool     // the immediate was delivered
}

// number gives the batch's immediate its number, unless it has one. The caller holds b.mu.
func (b *Batch) number() (ok bool) {
	if b.imm.Source != 0 {
		return true
	}
	b.imm, ok = b.e.outbox.Start(b.opt.Imm)
	if n := len(b.parts); n > 0 {
		b.imm.Value, b.imm.Text = b.parts[n-1].Value, b.parts[n-1].Text
	}
	return ok
}

// ride has the immediates of the batches that are whole in a run, and in order, go with
// their last slices. A modelled link's immediates wait for its time.
func ride(run []*Slice) {
	for len(run) > 0 {
		b, n := run[0].batch, 1
		for n < len(run) && run[n].batch == b {
			n++
		}
		order := Loose
		if b.whole(run[:n]) {
			b.mu.Lock()
			if b.cause == nil && b.number() {
				s := run[n-1]
				s.HasImm, s.Imm, s.Behind = true, b.imm, n-1
				b.riding.on, order = s, &b.riding.run
			}
			b.mu.Unlock()
		}
		for _, s := range run[:n] {
			s.Run = order
		}
		run = run[n:]
	}
}

// whole says that an immediate may ride with the batch, and that a run begins with its slices, none
// of which has been posted: one that has is sent again as a copy.
func (b *Batch) whole(run []*Slice) bool {
	n := len(b.slices)
	if !b.opt.HasImm || b.reads || len(b.others) > 0 || len(b.parts) > 1 || b.e.pacer != nil || n == 0 || n > len(run) {
		return false
	}
	for i := range n {
		if run[i] != &b.slices[i] {
			return false
		}
	}
	return true
}

// dismount takes the immediates off slices that wait for a path: what was posted before
// them was lost, or they may be spread over others. The caller holds the path's mu.
func dismount(queue []*Slice) {
	for _, s := range queue {
		if !s.HasImm || len(s.Local) == 0 {
			continue
		}
		s.HasImm, s.Imm, s.Behind = false, Imm{}, 0
		s.batch.mu.Lock()
		s.batch.riding.on = nil
		s.batch.mu.Unlock()
	}
}

// arrive notes that the slice which has the immediate is applied.
func (b *Batch) arrive() {
	b.mu.Lock()
	b.riding.arrived = true
	b.mu.Unlock()
}

// postpone takes the copy of a slice that was lost on a path, if the immediate may have been
// delivered before that, and says what to ask the target then, unless that was asked already.
func (b *Batch) postpone(p *path, s, again *Slice) (postponed bool, question *Slice) {
	b.mu.Lock()
	r := &b.riding
	switch {
	case r.on == nil || len(s.Local) == 0:
		b.mu.Unlock()
		return false, nil
	case r.arrived: // the target has answered before all that was lost has ended
		b.mu.Unlock()
		b.count(p, []*Slice{again})
		return true, nil
	case b.cause != nil:
		b.mu.Unlock()
		b.sliceDone(1)
		return true, nil
	}
	r.again = append(r.again, again)
	if r.path == nil {
		r.path = p
		question = &Slice{Op: Write, HasImm: true, Imm: b.imm.Question(), batch: b, target: b.t, tries: again.tries, stale: s.conn.Load()}
		b.again = append(b.again, question)
		b.pending.Add(1)
	}
	b.mu.Unlock()
	return true, question
}

// answered takes the target's answer, and returns what is to be sent again.
func (b *Batch) answered(delivered bool) []*Slice {
	b.mu.Lock()
	r := &b.riding
	again, p := r.again, r.path
	r.again = nil
	if delivered {
		r.arrived = true
	} else {
		r.on = nil
	}
	b.mu.Unlock()
	if delivered {
		p.acct.Imms.Add(1)
		b.count(p, again)
		return nil
	}
	for _, s := range again {
		s.stale = nil // its connection has ended, or nothing would have been asked
		p.acct.Retried(int64(len(s.Local)))
	}
	return again
}

// count ends slices that are known to be applied although their completion was lost.
func (b *Batch) count(p *path, applied []*Slice) {
	if len(applied) == 0 {
		return
	}
	p.acct.Write.Bytes.Add(size(applied))
	b.paths.Or(1 << p.index)
	b.applied(applied)
	b.sliceDone(len(applied))
}
