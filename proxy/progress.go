package proxy

import (
	"time"

	"kvferry/proto"
)

const (
	// stallSlack is how late a node may be with a step, or with its first word, besides
	// half of what the step should take: steps of a machine whose other programs take
	// all of it were seen to end up to 0.4 s late.
	stallSlack = time.Second
	// waitLimit is how long nodes may wait for each other while none of the cluster gets
	// on. What a node can wait for, a transfer or a peer's answer, ends within
	// TransferTimeout (10 s) by itself.
	waitLimit = 15 * time.Second
)

// progress tells whether a node gets on with what it owes, as a state machine: it has no
// clock. It is the node's progress, not a request's: however long the queue, a node that
// ends steps or moves bytes is alive.
//
//	owes nothing                               fine
//	a step is under way                        it may take 1.5 times what it should, and stallSlack
//	no word yet of what is under way           likewise, by the model and the prompts it was given
//	waits for another node, by its own word    as long as any node of the cluster gets on
type progress struct {
	step, token time.Duration // a step takes step at most, and token more a prompt token
	window      int           // prompt tokens that one step has at most, about

	owed   int           // legs that the next word is due of
	tokens int           // of prompt, of these
	at     time.Duration // the last sign of life, or when it began to owe
	count  uint64        // Load.progress
	due    time.Duration // what the step under way should take, 0 if it has not said
	waits  bool
}

func newProgress(info *proto.NodeInfo) progress {
	return progress{
		step: time.Duration(info.StepUs) * time.Microsecond, token: time.Duration(info.PromptTokenNs), window: int(info.MaxModelLen),
	}
}

// owe counts a leg in that the node is to work on.
func (p *progress) owe(now time.Duration, tokens int) {
	if p.owed == 0 {
		p.at = now
	}
	p.owed++
	p.tokens += tokens
}

// settle counts it out.
func (p *progress) settle(tokens int) {
	p.owed--
	p.tokens -= tokens
}

// word is a sign of life: the node said something of a leg.
func (p *progress) word(now time.Duration) { p.at = max(p.at, now) }

// load takes in what the node says of itself.
func (p *progress) load(now time.Duration, l *proto.Load) {
	due := time.Duration(l.StepUs) * time.Microsecond
	if l.Progress > p.count || p.waits && !l.Waits || p.due == 0 && due > 0 {
		p.count = max(p.count, l.Progress)
		p.at = max(p.at, now)
	}
	p.due, p.waits = due, l.Waits
}

// stalled reports whether the node does not get on. any is when any node of the cluster
// last did.
func (p *progress) stalled(now, any time.Duration) bool {
	switch {
	case p.owed == 0:
		return false
	case p.waits:
		return now-max(p.at, any) > waitLimit
	}
	return now-p.at > p.limit()
}

func (p *progress) limit() time.Duration {
	due := p.due
	if due == 0 {
		due = p.step + time.Duration(min(p.tokens, p.window))*p.token
	}
	return stallSlack + due*3/2
}
