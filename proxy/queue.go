package proxy

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"kvferry/proto"
	"kvferry/proxy/openai"
)

// This file is which requests the proxy takes on, and how long one would wait for its
// turn. A request waits until the node that generates its tokens has begun to: a
// layerwise one longer than for its first token, which the prefill node gives, for its KV
// may be on the way still. A load that the network is too slow for shows there.

// room reports why no request would be admitted now.
func (p *Proxy) room() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roomLocked()
}

// roomLocked is room for a caller that holds mu.
func (p *Proxy) roomLocked() error {
	switch {
	case p.draining:
		return errProxyDrains
	case p.waiting >= p.cfg.MaxQueue:
		return queueFull("queue_full", p.expectedWait(), fmt.Errorf("%w: %d requests wait (--max-queue)", errProxyFull, p.waiting))
	case p.cfg.MaxQueueTime > 0:
		if wait := p.expectedWait(); wait > p.cfg.MaxQueueTime {
			return queueFull("queue_too_long", wait-p.cfg.MaxQueueTime,
				fmt.Errorf("%w: a request would wait %v for its turn, longer than %v (--max-queue-time)", errProxyFull, wait.Round(time.Millisecond), p.cfg.MaxQueueTime))
		}
	}
	return nil
}

// queueFull is a 429 that says when to come back: once what is ahead has been served,
// as far as it is too much.
func queueFull(code string, after time.Duration, err error) *openai.Error {
	seconds := max(int(math.Ceil(after.Seconds())), 1)
	return &openai.Error{
		Status: http.StatusTooManyRequests, Type: "rate_limit_error", Code: code, RetryAfter: seconds,
		Message: err.Error() + "; try again in " + strconv.Itoa(seconds) + " s", Err: err,
	}
}

// admit takes a request on, unless there is no room for it. It waits from now on,
// until started; leave must be called when it has ended.
func (p *Proxy) admit(f *flight) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.roomLocked(); err != nil {
		return err
	}
	p.inFlight++
	p.waiting++
	f.waiting = true
	p.unplaced += len(f.req.Prompt)
	f.unplaced = len(f.req.Prompt)
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
func (p *Proxy) leave(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startedLocked(f)
	p.placedLocked(f)
	p.inFlight--
	if p.draining && p.inFlight == 0 {
		close(p.idle)
	}
}

// backlogMemory is how far back a rate looks, in time with something to do: long
// enough to hold several of the longest steps, a second or two, and short enough to
// follow a change of the load's kind.
const backlogMemory = 10 * time.Second

// priorSeconds is for how long a node would have to work to outweigh what it said of
// itself: about a step. Until then one prompt that has ended, of many that came with
// it, would be all that is known.
const priorSeconds = 1.0

// backlog is what waits at one node, in prompt tokens, and how fast the node works it
// off: from a leg's submission until the next leg's, and for the last until the request
// runs. It has no clock; times are on the proxy's.
type backlog struct {
	mu     sync.Mutex
	prior  float64       // prompt tokens a second, by the node's own word; 0: it has none
	tokens int           // of prompts that wait
	at     time.Duration // of the last change
	// Prompt tokens that were worked off and seconds in which there were any to do,
	// both decayed over backlogMemory of such seconds.
	done, busy float64
}

func (b *backlog) advance(now time.Duration) {
	if dt := (now - b.at).Seconds(); b.tokens > 0 && dt > 0 {
		keep := math.Exp(-dt / backlogMemory.Seconds())
		b.done *= keep
		b.busy = b.busy*keep + backlogMemory.Seconds()*(1-keep)
	}
	b.at = max(b.at, now)
}

// enter adds a prompt.
func (b *backlog) enter(now time.Duration, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens += tokens
}

// exit takes a prompt out, worked off or given up.
func (b *backlog) exit(now time.Duration, tokens int, worked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens -= tokens
	if worked {
		b.done += float64(tokens)
	}
}

// declare has the rate begin with what a node says of itself: nanoseconds a prompt token
// on a GPU that is hot.
func (b *backlog) declare(promptTokenNS uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if promptTokenNS > 0 {
		b.prior = 1e9 / float64(promptTokenNS)
	}
}

// state is what waits, how many tokens a second are worked off, and for how long it
// has been busy of late. A node that has worked off nothing yet, and has said nothing,
// has no rate.
func (b *backlog) state(now time.Duration) (tokens int, rate, busy float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	switch {
	case b.prior > 0:
		rate = (b.done + b.prior*priorSeconds) / (b.busy + priorSeconds)
	case b.done > 0:
		rate = b.done / b.busy
	}
	return b.tokens, rate, b.busy
}

// roleWait is how long a prompt that arrives now would wait at the nodes of one role:
// what waits there, and ahead of it, over what they work off together. A node that
// has shown no rate yet counts as the others' average. Where none has, the wait is
// as long as the longest has been busy: nobody has waited less.
func roleWait(now time.Duration, ahead int, nodes []*backlog) time.Duration {
	rates, known := 0.0, 0
	longest := 0.0
	for _, n := range nodes {
		tokens, rate, busy := n.state(now)
		ahead += tokens
		if rate > 0 {
			rates += rate
			known++
		}
		longest = max(longest, busy)
	}
	seconds := longest
	if known > 0 {
		seconds = float64(ahead) / (rates / float64(known) * float64(len(nodes)))
	}
	if ahead == 0 {
		return 0
	}
	return time.Duration(min(seconds, math.MaxInt64/4e9) * 1e9)
}

// expectedWait is how long a request that arrives now would wait for others before
// its own prompt is computed, at the nodes of every role that it passes. The caller
// holds mu.
func (p *Proxy) expectedWait() time.Duration {
	now := p.clock.Now()
	backlogs := make(map[proto.Role][]*backlog)
	for _, m := range p.registry.snapshot() {
		if _, _, up := m.usable(); up {
			backlogs[m.info.Role] = append(backlogs[m.info.Role], &m.backlog)
		}
	}
	disagg, err := p.registry.serving()
	switch {
	case err != nil:
		return 0
	case disagg:
		return roleWait(now, p.unplaced, backlogs[proto.Role_ROLE_PREFILL]) + roleWait(now, 0, backlogs[proto.Role_ROLE_DECODE])
	default:
		return roleWait(now, p.unplaced, backlogs[proto.Role_ROLE_NONDISAGG])
	}
}

// waitLevels are the expected waits that are worth a line in the log.
var waitLevels = []time.Duration{time.Second, 10 * time.Second, time.Minute}

// waitAlarm tells when the expected wait has passed one of them. It falls back below
// half of it before it does again, lest a wait about a level fill the log.
type waitAlarm struct{ level int }

// step takes the wait as it is now and reports whether that is news.
func (a *waitAlarm) step(wait time.Duration) (news bool) {
	before := a.level
	for a.level < len(waitLevels) && wait >= waitLevels[a.level] {
		a.level++
	}
	for a.level > 0 && wait < waitLevels[a.level-1]/2 {
		a.level--
	}
	return a.level != before
}

// watchQueue writes a line whenever the expected wait passes a level.
func (p *Proxy) watchQueue(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var alarm waitAlarm
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.reportQueue(&alarm)
		}
	}
}

func (p *Proxy) reportQueue(alarm *waitAlarm) {
	p.mu.Lock()
	wait, waiting, running := p.expectedWait(), p.waiting, p.inFlight-p.waiting
	p.mu.Unlock()
	before := alarm.level
	if !alarm.step(wait) {
		return
	}
	message := "requests wait less again"
	if alarm.level > before {
		message = "requests wait for their turn"
	}
	p.cfg.Logger.Info(message, "expected_wait", wait.Round(time.Millisecond), "waiting", waiting, "running", running)
}
