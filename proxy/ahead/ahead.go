// Package ahead has what a proxy knows of a node by itself when it places a leg, or decides whether a
// prompt goes ahead (package attempt): how long a message takes there and back, and which legs are on their
// way there.
package ahead

import (
	"slices"
	"time"

	"kvferry/attempt"
	"kvferry/placement"
	"kvferry/proto"
)

// Way is the legs on their way to a node, which its last load does not count. The zero value
// has none. Not safe for concurrent use.
type Way struct {
	sent   []leg
	tokens int
}

type leg struct {
	id     uint64
	tokens int // that its node computes
	prompt int // tokens
}

// Submitted adds a leg that was sent. Each has a higher id than the one before.
func (w *Way) Submitted(id uint64, tokens, prompt int) {
	w.sent = append(w.sent, leg{id, tokens, prompt})
	w.tokens += tokens
}

// Counted takes off the legs up to the one with that id, which a load counts.
func (w *Way) Counted(last uint64) {
	n := 0
	for n < len(w.sent) && w.sent[n].id <= last {
		w.tokens -= w.sent[n].tokens
		n++
	}
	w.sent = slices.Delete(w.sent, 0, n)
}

// Tokens is how many prompt tokens on the way the node will compute.
func (w *Way) Tokens() int { return w.tokens }

// Candidate is a node with such a load as placement sees it, with the legs that are on their way to
// it. How much it has to do its member knows.
func (w *Way) Candidate(n *proto.NodeInfo, l *proto.Load) placement.Candidate {
	c := placement.Candidate{
		ID: n.Id, Blocks: int(max(n.KvBlocks, n.PrefixBlocks)), Adapters: l.Adapters, AdapterSlots: int(l.AdapterSlots),
		LinkBytesPerSecond: float64(l.LinkRate), LinkQueuedBytes: int64(l.LinkQueued),
		TokenTime: time.Duration(n.PromptTokenNs), SequenceTime: time.Duration(n.SequenceNs),
	}
	for _, s := range w.sent {
		if s.tokens == 0 { // its KV comes
			c.LinkQueuedBytes += int64(s.prompt) * int64(n.KvTokenBytes)
		}
	}
	return c
}

// Outlook is that of a node with such a load, roundTrip away. Each sequence that it runs may
// want another block before the legs come.
func (w *Way) Outlook(roundTrip time.Duration, l *proto.Load, blockTokens int) attempt.Outlook {
	o := attempt.Outlook{
		RoundTrip: roundTrip, Sequences: int(l.Room) - len(w.sent), Blocks: int(l.KvBlocksTotal) - int(l.KvBlocksUsed) - int(l.Running),
	}
	for _, s := range w.sent {
		o.Blocks -= (s.prompt + blockTokens - 1) / max(blockTokens, 1)
	}
	return o
}
