package proxy

import (
	"slices"
	"sync"
	"time"

	"kvferry/proto"
	"kvferry/proxy/turn"
)

// leg is one part of a request as the proxy follows it on one node. Those of its fields that
// name no guard stay as they are once it has been submitted.
type leg struct {
	id     uint64 // on the node's stream
	kind   proto.Leg
	node   *member
	inbox  *inbox
	tokens int // of prompt this leg computes
	prompt int // tokens of it, whoever computes it

	// owed: the node is to do something for this leg before anybody else. Guarded by
	// node.mu.
	owed bool
	// due is the deadline for the next message about this leg, 0 if that depends on other work.
	// Guarded by node.mu.
	due time.Duration
	// computed is set once the node has nothing more to compute for this leg,
	// which stays known to its node only so that the node's loss is noticed.
	// Guarded by node.mu.
	computed bool
	// asked: whether the KV is still right, which the node answers though it has finished.
	// Guarded by node.mu.
	asked bool
}

// arrival is one token as it came off a node's stream.
type arrival struct {
	leg      *leg
	at       time.Duration // proxy's clock
	position uint32
	token    uint32
}

// report is what a node said of a leg other than tokens. Exactly one of the
// pointers and lost is set. The messages are the reader's.
type report struct {
	leg       *leg
	at        time.Duration // when it came off the stream; proxy's clock
	reserved  *proto.Reserved
	prefilled *proto.Prefilled
	migrated  *proto.Migrated
	finished  *proto.Finished
	failed    *proto.Failed
	lost      error
	turn      turn.Turn
	after     int // unread tokens that came before it
}

// ended reports whether r says that a node has failed or lost the leg.
func (l *leg) ended(r report) bool { return r.leg == l && (r.failed != nil || r.lost != nil) }

// inbox is what the nodes have said of one request and its handler has not
// read. The receivers of several streams write to it and never block: it has no bound of its
// own, since a request's tokens have one. A channel of tokens would either block a receiver,
// and every other request of that node with it, or have room for all of them from the start.
type inbox struct {
	ready chan struct{} // one buffered wake-up, which the handler alone takes
	batch int           // unread tokens that are worth waking the handler for

	mu      sync.Mutex
	from    *leg // of the last token
	tokens  []arrival
	reports []report
}

// newInbox wakes its reader for each leg's first token, for batch tokens and for any report.
// batch is 1 when it streams, everything asked for when it only collects.
func newInbox(batch int) *inbox {
	return &inbox{ready: make(chan struct{}, 1), batch: batch}
}

func (b *inbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

func (b *inbox) addToken(a arrival) {
	b.mu.Lock()
	b.tokens = append(b.tokens, a)
	worth := len(b.tokens) >= b.batch || a.leg != b.from
	b.from = a.leg
	b.mu.Unlock()
	if worth {
		b.wake()
	}
}

func (b *inbox) addReport(r report) {
	b.mu.Lock()
	r.after = len(b.tokens)
	b.reports = append(b.reports, r)
	b.mu.Unlock()
	b.wake()
}

// has reports whether a report of a kind is unread.
func (b *inbox) has(kind func(report) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.reports, kind)
}

// take returns everything unread and leaves the given slices' memory for what
// comes next: the caller passes what it has read, and must not look at that again. Two
// pieces of memory a request go to and fro so, and none is allocated for a token. Tokens a
// node sent before a report are never behind it.
func (b *inbox) take(tokens []arrival, reports []report) ([]arrival, []report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, r := b.tokens, b.reports
	b.tokens, b.reports = tokens[:0], reports[:0]
	return t, r
}
