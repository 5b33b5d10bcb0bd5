package health

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

// Progress tells whether a node gets on with what it owes, as a state machine: it has no
// clock. It is the node's Progress, not a request's: however long the queue, a node that
// ends steps or moves bytes is alive.
//
//	owes nothing                               fine
//	a step is under way                        it may take 1.5 times what it should, and stallSlack
//	no word yet of what is under way           likewise, by the model and the prompts it was given
//	waits for another node, by its own word    as long as any node of the cluster gets on
type Progress struct {
	step, token time.Duration // a step takes step at most, and token more a prompt token
	most        int           // prompt tokens that one step has at most, about
	longest     time.Duration // of a step, whatever the node says: an adapter may have to be loaded

	owed   int           // legs that the next word is due of
	tokens int           // of prompt, of these
	At     time.Duration // the last sign of life, or when it began to owe
	count  uint64        // Load.progress
	Due    time.Duration // what the step under way should take, 0 if it has not said
	waits  bool
}

// NewProgress is that of a node which costs what it says of itself.
func NewProgress(info *proto.NodeInfo) Progress {
	return Progress{
		step: time.Duration(info.StepUs) * time.Microsecond, token: time.Duration(info.PromptTokenNs), most: int(info.MaxModelLen),
		longest: time.Minute + 2*info.LongestStep(),
	}
}

// Owe counts a leg in that the node is to work on.
func (p *Progress) Owe(now time.Duration, tokens int) {
	if p.owed == 0 {
		p.At = now
	}
	p.owed++
	p.tokens += tokens
}

// Settle counts it out.
func (p *Progress) Settle(tokens int) {
	p.owed--
	p.tokens -= tokens
}

// Word is a sign of life: the node said something of a leg.
func (p *Progress) Word(now time.Duration) { p.At = max(p.At, now) }

// Load takes in what the node says of itself.
func (p *Progress) Load(now time.Duration, l *proto.Load) {
	due := min(time.Duration(l.StepUs)*time.Microsecond, p.longest)
	if l.Progress > p.count || p.waits && !l.Waits || p.Due == 0 && due > 0 {
		p.count = max(p.count, l.Progress)
		p.At = max(p.At, now)
	}
	p.Due, p.waits = due, l.Waits
}

// Stalled reports whether the node does not get on. any is when any node of the cluster
// last did.
func (p *Progress) Stalled(now, any time.Duration) bool {
	switch {
	case p.owed == 0:
		return false
	case p.waits:
		return now-max(p.At, any) > waitLimit
	}
	return now-p.At > p.Limit()
}

// Limit is how long the node may say nothing while it owes something.
func (p *Progress) Limit() time.Duration {
	due := p.Due
	if due == 0 {
		due = p.step + time.Duration(min(p.tokens, p.most))*p.token
	}
	return stallSlack + due*3/2
}
