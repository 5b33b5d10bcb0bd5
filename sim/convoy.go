package sim

import "time"

// This file is layers that meet nobody on their way. A convoy is those of one prompt, each of which
// is there before the next is sent, over NICs that nobody else uses. When they will be there is
// known beforehand, so they are no events, until somebody else is about to use one of the NICs.

// convoy sends off a transfer and the parts after it as one, if they can go so.
func (c *cluster) convoy(t *transfer) bool {
	if c.plain || t.from.leaf.up != nil || t.from.bus.up != nil {
		return false // they share more than NICs
	}
	free := true
	c.spread(t.from, t.to, t.moved.Bytes, func(bytes float64, path []*port) {
		took, alone := c.network.Alone(bytes, path)
		t.took, free = max(t.took, took), free && alone
	})
	last := c.now
	for _, at := range t.after {
		free = free && at-last >= t.took
		last = at
	}
	if free {
		t.since = c.now
		t.from.sending, t.to.receiving = t, t
	}
	return free
}

// disperse ends a convoy, if there is one: those of its parts that are there by now went
// together, the others go on by themselves.
func (c *cluster) disperse(t *transfer) {
	if t == nil {
		return
	}
	t.from.sending, t.to.receiving = nil, nil
	c.stats.Events-- // the first has had its start
	there := 0
	for ; there <= len(t.after) && t.starts(there)+t.took <= c.now; there++ {
		c.stats.Events += uint64(1 + len(c.cfg.NICs))
		c.spread(t.from, t.to, t.moved.Bytes, c.network.Carried)
	}
	for i := there; i <= len(t.after); i++ {
		p := t.part(i)
		if p.since > c.now {
			t.node.schedule(p)
			continue
		}
		c.stats.Events++
		c.resume(p)
	}
	if there > 0 {
		at := t.starts(there-1) + t.took
		t.moved.More, t.moved.Bytes = there-1, t.moved.Bytes*int64(there)
		c.sent(t, at)
	}
}

// resume has a part of a convoy go on as an event: what of it is not there by now. NICs of which the
// other end is slower take longer than others.
func (c *cluster) resume(p *transfer) {
	p.left = len(c.cfg.NICs)
	c.spread(p.from, p.to, p.moved.Bytes, func(bytes float64, path []*port) {
		if took, _ := c.network.Alone(bytes, path); p.since+took > c.now {
			c.network.Start(p.since, bytes, path, p)
			return
		}
		c.network.Carried(bytes, path)
		c.stats.Events++
		p.left--
	})
}

// uncouple has the parts after a transfer start one after another behind it.
func (t *transfer) uncouple() {
	last := t
	for i := range t.after {
		p := t.part(1 + i)
		p.next, last.next = last.next, p
		last = p
	}
	t.after = nil
	if t.node.posting == t {
		t.node.posting = last
	}
}

// starts is when a part of a transfer does.
func (t *transfer) starts(i int) time.Duration {
	if i == 0 {
		return t.since
	}
	return t.after[i-1]
}

// part is a part of a transfer by itself.
func (t *transfer) part(i int) *transfer {
	p := *t
	p.since, p.after = t.starts(i), nil
	p.moved.Part += i
	p.moved.Posted = max(p.since, t.moved.Posted)
	return &p
}
