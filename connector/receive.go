package connector

import (
	"fmt"
	"slices"
	"time"

	"kvferry/engine"
)

// receiver is the decode side of hand-offs in a step: a Receive step fetches the KV of its
// requests one after another, and the engine does nothing else meanwhile.
//
//	ask ─▶ tensor available ─▶ read, wire ─▶ unpickle, copy in ─▶ next tensor … ─▶ next request
//
// The producer makes the next tensor available while this one is fetched. The
// fixed cost of a receive runs from the moment it is asked for.
type receiver struct {
	step   *engine.Step
	i      int // request being received
	failed []uint64

	avail  [tensors]bool
	asked  time.Duration
	tensor int           // being read or next to read
	state  recvState     // of that tensor
	free   time.Duration // when the receiver may go on
	landed time.Duration // last byte of the request
}

type recvState uint8

const (
	recvIdle    recvState = iota // no request
	recvWait                     // for the tensor to be available and the receiver to be free
	recvReading                  // on the wire
	recvCheck                    // all tensors in; waiting for the checks and the copies
)

// has reports whether the request is being received, or about to be.
func (v *receiver) has(id uint64) bool {
	return v.step != nil && slices.ContainsFunc(v.step.Works[v.i:], func(w engine.Work) bool { return w.Seq.ID == id })
}

func (v *receiver) current() uint64 {
	if v.step == nil {
		return 0
	}
	return v.step.Works[v.i].Seq.ID
}

func (v *receiver) produced(id uint64, tensor int, now time.Duration) {
	if v.current() == id && tensor >= 0 && tensor < tensors {
		v.avail[tensor] = true
		if tensor == v.tensor {
			v.free = max(v.free, now)
		}
	}
}

// wake is when the receiver can go on, 0 if an event must come first.
func (v *receiver) wake(now time.Duration) time.Duration {
	if v.free > now && (v.state == recvWait && v.avail[v.tensor] || v.state == recvCheck) {
		return v.free
	}
	return 0
}

func (c *Core) startReceive(step *engine.Step) {
	v := &c.receiver
	*v = receiver{step: step, failed: v.failed[:0]}
	v.i = -1
	c.nextReceive(step.At)
}

// nextReceive asks for the next request's tensors, or ends the step.
func (c *Core) nextReceive(at time.Duration) {
	v := &c.receiver
	for {
		v.i++
		if v.i >= len(v.step.Works) {
			c.endReceive(at)
			return
		}
		r := c.reqs[v.current()]
		if r.state == abandoned {
			v.failed = append(v.failed, r.ID)
			continue
		}
		r.state = moving
		r.b.Queue = at - r.ready // others of the step went before
		v.state, v.tensor, v.avail = recvWait, 0, [tensors]bool{}
		v.asked, v.free = at, at+millis(c.v0.ReceiveMS)
		c.act.Ask = append(c.act.Ask, Ask{ID: r.ID, Node: r.Remote.Node, Transfer: r.Remote.Transfer})
		return
	}
}

// receive lets the receiver do what it can now.
func (c *Core) receive() {
	v := &c.receiver
	if v.state == recvWait && v.avail[v.tensor] && c.now >= v.free {
		r := c.reqs[v.current()]
		v.state = recvReading
		r.moves++
		m := Move{ID: r.ID, Part: v.tensor, Pairs: c.pairs(r)}
		if c.now-v.free <= engine.MaxLag {
			m.Since = v.free
		}
		c.act.Moves = append(c.act.Moves, m)
	}
	if v.state == recvCheck && c.now >= v.free {
		r := c.reqs[v.current()]
		if r.checks > 0 || r.open {
			return // something is still in its blocks; Checked or Closed calls again
		}
		c.endRequest(r, max(v.free, r.checked))
	}
}

// endRequest is done with the request being received, well or not.
func (c *Core) endRequest(r *request, at time.Duration) {
	v := &c.receiver
	v.state = recvIdle
	if c.now-at > engine.MaxLag {
		at = c.now
	}
	if r.state == abandoned {
		v.failed = append(v.failed, r.ID)
	} else {
		r.state = running
		c.queue(r, 0, 1)
		r.usable = at
		r.b.Land = at - v.landed
		r.b.Post = max(at-v.asked-r.b.Wire-r.b.Land, 0)
		c.release(r)
		c.totals.Transfers++
	}
	c.nextReceive(at)
}

func (c *Core) endReceive(at time.Duration) {
	v := &c.receiver
	done := engine.Done{At: at}
	for _, w := range v.step.Works {
		r := c.reqs[w.Seq.ID]
		if r == nil || r.state == abandoned {
			done.Failed = append(done.Failed, w.Seq.ID)
			continue
		}
		done.Tokens = append(done.Tokens, r.first)
	}
	c.toRun = append(c.toRun, done)
	v.step = nil
	for _, id := range v.failed {
		if r := c.reqs[id]; r != nil { // else it was withdrawn, and has been cancelled since
			c.settle(r)
		}
	}
}

// receivedTensor goes on after the read of a tensor.
func (c *Core) receivedTensor(r *request, ev Moved) {
	v := &c.receiver
	if r.state == abandoned || ev.Err != nil {
		c.abandon(r, fmt.Errorf("%w: request %d, tensor %d from %s: %w", ErrTransfer, r.ID, ev.Part, r.Remote.Node, ev.Err))
		v.state, v.free = recvCheck, c.now
		return
	}
	r.checks++
	c.act.Checks = append(c.act.Checks, Check{ID: r.ID, Part: ev.Part, Refs: c.blocks(r)})
	v.landed = ev.At
	v.free = ev.At + millis(c.v0.ConsumerMSPerMB*c.tensorMB(ev.Part, len(r.Prompt)))
	v.tensor++
	v.state = recvWait
	if v.tensor == tensors {
		v.state = recvCheck
	}
}

// forget goes on without a request that is abandoned now.
func (v *receiver) forget(id uint64, now time.Duration) {
	if v.state == recvWait && v.current() == id {
		v.state, v.free = recvCheck, now
	}
}
