package connector

import (
	"slices"
	"time"

	"kvferry/engine"
)

// producer is the prefill side of hand-offs in a step: one CPU and one GPU stream that
// prefill steps and the copies of tensors for consumers share. The published system's copies were
// issued on the stream of the prefill kernels and made under the interpreter
// lock, so
//
//   - a copy waits for the prefill step that is running;
//   - a copy that is running holds back the next prefill step;
//   - pending copies may hold it back for gap after the last step ended, then the
//     step goes first and they wait for its end.
//
// See calibration: without the first coupling no set of costs fits the published
// rows within a factor of ten of this one's loss.
type producer struct {
	gap time.Duration

	stepping bool
	ended    time.Duration // the last step that computed prompts
	queue    []copyJob
	busy     bool
	job      copyJob
	until    time.Duration
}

type copyJob struct {
	transfer uint64
	tensor   int
	asked    time.Duration
	cost     time.Duration
}

func (p *producer) launched() { p.stepping = true }

func (p *producer) stepDone(at time.Duration) {
	if p.stepping {
		p.stepping, p.ended = false, at
	}
}

// notBefore is the earliest time at which the next prefill step may start.
func (p *producer) notBefore(now time.Duration) time.Duration {
	if len(p.queue) > 0 && now < p.ended+p.gap {
		return p.ended + p.gap
	}
	return p.until
}

// finished returns the copy that has ended by now, if any.
func (p *producer) finished(now time.Duration) (copyJob, bool) {
	if !p.busy || now < p.until {
		return copyJob{}, false
	}
	p.busy = false
	return p.job, true
}

// start begins the next copy if no step is in its way. Once the gap is over the
// scheduler has its turn before: a prompt that goes first is running by now.
func (p *producer) start(now time.Duration) {
	if p.stepping || p.busy || len(p.queue) == 0 {
		return
	}
	at := max(p.until, p.ended, p.queue[0].asked) // on an absolute schedule
	if now-at > engine.MaxLag {
		at = now
	}
	p.busy, p.job, p.queue = true, p.queue[0], p.queue[1:]
	p.until = at + p.job.cost
}

// forget drops the pending copies of a transfer.
func (p *producer) forget(transfer uint64) {
	p.queue = slices.DeleteFunc(p.queue, func(j copyJob) bool { return j.transfer == transfer })
}

// wake is when the producer has something to do, 0 if only an event can tell.
func (p *producer) wake() time.Duration {
	if p.busy {
		return p.until
	}
	return 0 // what is queued waits for the end of a step
}

// producerAsked queues the copies of a transfer's three tensors. Asked again, by
// a consumer that took over from one that failed, it starts over. The driver renews
// the lease of who asks.
func (c *Core) producerAsked(transfer uint64) {
	r := c.transfers[transfer]
	if r == nil || r.state != offered || !r.Handoff.InStep {
		c.act.Answer = append(c.act.Answer, Answer{Transfer: transfer, Gone: true})
		return
	}
	c.producer.forget(transfer)
	for tensor := range tensors {
		c.producer.queue = append(c.producer.queue, copyJob{transfer, tensor, c.now, millis(c.v0.ProducerMSPerMB * c.tensorMB(tensor, len(r.Prompt)))})
	}
}

// produce answers for copies that are done. Whether the gap is over is judged by
// when a copy ended on the schedule, not by when that was noticed: K and V take
// about as long as the gap, so 0.1 ms of lateness would decide who goes first.
func (c *Core) produce() {
	p := &c.producer
	for {
		job, ok := p.finished(c.now)
		if !ok {
			return
		}
		if r := c.transfers[job.transfer]; r != nil && r.state == offered {
			c.act.Answer = append(c.act.Answer, Answer{Transfer: job.transfer, Tensor: job.tensor})
		}
		if p.until < p.ended+p.gap {
			p.start(c.now)
		}
	}
}

// tensorMB is the published payload of one tensor of a prompt, in MB.
func (c *Core) tensorMB(tensor, tokens int) float64 {
	g := c.cfg.Profile.KVGeometry
	if tensor == TensorHidden {
		return float64(tokens*g.HiddenTokenBytes()) / 1e6
	}
	return float64(tokens*g.TokenBytes()/2) / 1e6
}
