package health

import (
	"math"
	"sync"
	"time"
)

// backlogMemory is how far back a rate looks, in time with something to do: long
// enough to hold several of the longest steps, a second or two, and short enough to
// follow a change of the load's kind.
const backlogMemory = 10 * time.Second

// priorSeconds is for how long a node would have to work to outweigh what it said of
// itself: about a step. Until then one prompt that has ended, of many that came with
// it, would be all that is known.
const priorSeconds = 1.0

// Backlog is what waits at one node, in prompt tokens, and how fast the node works it
// off: from a leg's submission until the next leg's, and for the last until the request
// runs. It has no clock; times are on the proxy's.
type Backlog struct {
	mu     sync.Mutex
	prior  float64       // prompt tokens a second, by the node's own word; 0: it has none
	tokens int           // of prompts that wait
	at     time.Duration // of the last change
	// Prompt tokens that were worked off and seconds in which there were any to do,
	// both decayed over backlogMemory of such seconds.
	done, busy float64
}

func (b *Backlog) advance(now time.Duration) {
	if dt := (now - b.at).Seconds(); b.tokens > 0 && dt > 0 {
		keep := math.Exp(-dt / backlogMemory.Seconds())
		b.done *= keep
		b.busy = b.busy*keep + backlogMemory.Seconds()*(1-keep)
	}
	b.at = max(b.at, now)
}

// Enter adds a prompt.
func (b *Backlog) Enter(now time.Duration, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens += tokens
}

// Exit takes a prompt out, worked off or given up.
func (b *Backlog) Exit(now time.Duration, tokens int, worked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(now)
	b.tokens -= tokens
	if worked {
		b.done += float64(tokens)
	}
}

// Declare has the rate begin with what a node says of itself: nanoseconds a prompt token
// on a GPU that is hot.
func (b *Backlog) Declare(promptTokenNS uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if promptTokenNS > 0 {
		b.prior = 1e9 / float64(promptTokenNS)
	}
}

// State is what waits, how many tokens a second are worked off, and for how long it
// has been busy of late. A node that has worked off nothing yet, and has said nothing,
// has no rate.
func (b *Backlog) State(now time.Duration) (tokens int, rate, busy float64) {
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

// Wait is how long a prompt that arrives now would wait at the nodes of one role:
// what waits there, and ahead of it, over what they work off together. A node that
// has shown no rate yet counts as the others' average. Where none has, the wait is
// as long as the longest has been busy: nobody has waited less.
func Wait(now time.Duration, ahead int, nodes []*Backlog) time.Duration {
	rates, known := 0.0, 0
	longest := 0.0
	for _, n := range nodes {
		tokens, rate, busy := n.State(now)
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
