package proxy

import (
	"context"
	"fmt"
	"time"

	"kvferry/attempt"
	"kvferry/proto"
	"kvferry/proxy/health"
	"kvferry/proxy/openai"
	"kvferry/proxy/wire"
)

// This file is which requests the proxy takes on, and how long one would wait for its
// turn. A request waits until the node that generates its tokens has begun to: a
// one whose first token the prefill node gives, longer than for that, for its KV
// may be on the way still. A load that the network is too slow for shows there.

// room reports why no request would be admitted now.
func (p *Proxy) room() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roomLocked(1)
}

// roomLocked is room for so many requests, for a caller that holds mu.
func (p *Proxy) roomLocked(requests int) error {
	switch {
	case p.draining:
		return attempt.Ending
	case requests > p.cfg.MaxQueue:
		return openai.BadField("n", "%d answers: at most %d requests may wait here (--max-queue); ask for fewer at once", requests, p.cfg.MaxQueue)
	case p.waiting+p.early+requests > p.cfg.MaxQueue:
		return wire.QueueFull("queue_full", p.expectedWait(), fmt.Errorf("%w: %d requests wait (--max-queue)", attempt.Full, p.waiting+p.early))
	case p.cfg.MaxQueueTime > 0:
		if wait := p.expectedWait(); wait > p.cfg.MaxQueueTime {
			return wire.QueueFull("queue_too_long", wait-p.cfg.MaxQueueTime,
				fmt.Errorf("%w: a request would wait %v for its turn, longer than %v (--max-queue-time)", attempt.Full, wait.Round(time.Millisecond), p.cfg.MaxQueueTime))
		}
	}
	return nil
}

// hold gives a request that comes before the first node a place in the queue until admit counts it, or with -1 takes it back.
func (p *Proxy) hold(x *exchange, places int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.roomLocked(places); places > 0 && err != nil {
		return err
	}
	x.early += places
	p.early += places
	return nil
}

// admit takes a request on, with all of its choices, unless there is no room for them. Each
// waits from now on, until started; leave must be called when it has ended. room has been
// asked before; this one counts, under the same lock as it asks.
func (p *Proxy) admit(x *exchange) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.early, x.early = p.early-x.early, 0
	if err := p.roomLocked(len(x.flights)); err != nil {
		return err
	}
	p.inFlight += len(x.flights)
	p.waiting += len(x.flights)
	for i := range x.flights {
		f := &x.flights[i]
		f.waiting = true
		f.unplaced = len(f.choice.Prompt)
		p.unplaced += f.unplaced
	}
	return nil
}

// started says that a request waits no more: it runs.
func (p *Proxy) started(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startedLocked(f)
}

func (p *Proxy) startedLocked(f *flight) {
	if f.waiting {
		f.waiting = false
		p.waiting--
	}
}

// placed says that a request's prompt is in a node's backlog.
func (p *Proxy) placed(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.placedLocked(f)
}

func (p *Proxy) placedLocked(f *flight) {
	p.unplaced -= f.unplaced
	f.unplaced = 0
}

// leave counts a request out.
func (p *Proxy) leave(x *exchange) {
	if x.body != nil {
		x.body.Release()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range x.flights {
		p.startedLocked(&x.flights[i])
		p.placedLocked(&x.flights[i])
	}
	p.inFlight -= len(x.flights)
	if p.draining && p.inFlight == 0 {
		close(p.idle)
	}
}

// expectedWait is how long a request that arrives now would wait for others before
// its own prompt is computed, at the nodes of every role that it passes: what waits at the
// prefill nodes and what waits at the decode nodes come one after the other. Prompts that are
// in no node's backlog yet are ahead of it too. It is 0 where nothing would be served. The
// caller holds mu.
func (p *Proxy) expectedWait() time.Duration {
	now := p.clock.Now()
	if p.engines != nil {
		return p.engines.Expected(now, p.unplaced)
	}
	backlogs := make(map[proto.Role][]*health.Backlog)
	for _, m := range p.nodes.snapshot() {
		if _, _, up := m.usable(); up {
			backlogs[m.info.Role] = append(backlogs[m.info.Role], &m.backlog)
		}
	}
	disagg, err := p.nodes.serving()
	switch {
	case err != nil:
		return 0
	case disagg:
		return health.Wait(now, p.unplaced, backlogs[proto.Role_ROLE_PREFILL]) + health.Wait(now, 0, backlogs[proto.Role_ROLE_DECODE])
	default:
		return health.Wait(now, p.unplaced, backlogs[proto.Role_ROLE_NONDISAGG])
	}
}

// watchQueue writes a line whenever the expected wait passes a level.
func (p *Proxy) watchQueue(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var alarm health.Alarm
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.reportQueue(&alarm)
		}
	}
}

// reportQueue writes the line, if there is one to write. It is of level info: a queue is no
// fault.
func (p *Proxy) reportQueue(alarm *health.Alarm) {
	p.mu.Lock()
	wait, waiting, running := p.expectedWait(), p.waiting, p.inFlight-p.waiting
	p.mu.Unlock()
	before := alarm.Level
	if !alarm.Step(wait) {
		return
	}
	message := "requests wait less again"
	if alarm.Level > before {
		message = "requests wait for their turn"
	}
	p.cfg.Logger.Info(message, "expected_wait", wait.Round(time.Millisecond), "waiting", waiting, "running", running)
}

// Requests is how many requests have been taken on: those that wait for their turn, and
// those that run.
func (p *Proxy) Requests() (waiting, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.waiting + p.early, p.inFlight - p.waiting
}
