package proxy

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"kvferry/attempt"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/placement"
	"kvferry/proto"
	"kvferry/proxy/migration"
	"kvferry/proxy/openai"
)

// maxFreePlacements bounds how often a request is placed again without that
// counting as a retry, because a node turned it down unstarted. Each time
// another node has just begun to drain or was just lost; more in a row means
// that the nodes contradict what they report.
const maxFreePlacements = 16

// flight is one choice of an accepted request on its way: it is submitted, followed, and
// submitted again elsewhere if a node fails, by one goroutine alone: the request's own (see
// exchange), or one of as many as there are choices. What nodes say reaches it through its
// inbox, and nothing else of it is theirs. It lives as long as its exchange.
type flight struct {
	*exchange
	index  int            // among the choices
	choice *openai.Choice // stays as it is
	want   int            // tokens that it has if nothing else stops it
	eos    bool           // the model ends it there
	cut    *openai.Cut    // nil if no text or token stops it

	waiting  bool    // in the proxy's queue: it runs nowhere yet; guarded by proxy.mu
	unplaced int     // prompt tokens in no node's backlog yet; guarded by proxy.mu
	queued   *member // whose backlog it is in; nil once it has been worked off
	tokens   int     // of it there
	inbox    *inbox  // one for all attempts: what earlier ones' legs still say is dropped

	delivered []uint32      // in order, each exactly once
	kept      int           // of these, the first ones: the prompt of the attempt under way has them
	end       openai.End    // of the last token, once that is delivered
	e2e       time.Duration // from accepted to then
	retries   int
	free      int                       // placements beyond the first that were no retries
	avoid     map[*member]attempt.Fault // have failed it; chosen only if no other is there
	prefix    []kvcache.Hash            // of the prompt's blocks, once placement has wanted it

	own         time.Duration    // the proxy's part of the time after the prompt was submitted, whose age has all before
	first, last time.Duration    // when the first and the last token came in; proxy's clock
	entry       *migration.Entry // nil: it never goes on elsewhere
	breakdown   proto.Breakdown  // the nodes', summed over all attempts
	cached      uint32           // prompt tokens found in a prefix cache, the most of any attempt
	prefillNode string           // of the last attempt, as decodeNode is; "" before one was placed
	decodeNode  string
	usage       *openai.Usage // as engines counted; nil: nodes answer
	unknown     []string      // parts of the breakdown that they did not say

	// Memory for reading the inbox, kept between wake-ups.
	arrivals []arrival
	reports  []report
	ready    []attempt.Token
	ids      []uint32
}

// run ends with every token delivered, or with the reason they cannot be.
//
// It, follow and what they call until a write are on the stack of every request under way.
// Of one that is answered at its end, with net/http's own, that has to stay below 7 KiB for
// a stack of 8.
func (f *flight) run(ctx context.Context) error {
	f.entry = f.proxy.roster.Join(f.choice.Adapter, f.inbox.wake)
	defer f.entry.Leave()
	for {
		err := f.submit(ctx)
		if err == nil {
			return nil
		}
		if err = f.again(ctx, err); err != nil {
			return err
		}
	}
}

// again returns nil if the request should be placed again after err, once the
// nodes for it are there, and else what it ends with. Retries are bounded by MaxRetries; a
// node that turned the leg down before it began costs none, since nothing was computed in
// vain, nor does the wait of a request that was never placed.
func (f *flight) again(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	leg, isLeg := errors.AsType[*attempt.LegError](err)
	fault, ok := attempt.FaultOf(err)
	switch owner := fault.Owner(); {
	case !ok, owner == attempt.Client, owner == attempt.Cluster && fault != attempt.NoNode, isLeg && !leg.Retryable:
		return err
	case fault == attempt.Draining, !isLeg && fault == attempt.Lost:
		if f.free++; f.free > maxFreePlacements {
			return err
		}
		return nil
	case fault == attempt.NoNode && f.prefillNode == "" && f.decodeNode == "" && f.free < maxFreePlacements:
		f.free++
		return f.proxy.awaitNodes(ctx) // nothing was ever placed
	case f.retries >= f.proxy.cfg.MaxRetries:
		if f.retries > 0 {
			return fmt.Errorf("after %d retries: %w", f.retries, err)
		}
		return err
	}
	f.retries++
	f.metrics.Retried()
	f.proxy.cfg.Logger.Warn("request placed again", "request", f.requestID, "delivered", len(f.delivered), "retry", f.retries, "err", err)
	// A lost node may be back, or its successor up, within a lease.
	grace, cancel := context.WithTimeout(ctx, f.proxy.cfg.LeaseTTL)
	defer cancel()
	noNode := f.proxy.nodes.wait(grace)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case noNode != nil:
		return fmt.Errorf("%w (after: %w)", noNode, err)
	}
	return nil
}

// submit places what is left of the request and follows it to its end. Tokens that the client
// has are not generated again: the next attempt has them as part of its prompt.
func (f *flight) submit(ctx context.Context) error {
	disagg, err := f.proxy.nodes.serving()
	if err != nil {
		return err
	}
	var local *member
	if disagg && f.proxy.cfg.ConditionalDisaggregation > 0 {
		if local, err = f.choose(choice{role: proto.Role_ROLE_DECODE, local: true}); err != nil {
			return err
		}
	}
	h := handoff.None
	if disagg && local == nil {
		h = f.proxy.handoff
	}
	a := &submission{Attempt: attempt.New(h, f.want-f.kept), local: local}
	c, _ := f.proxy.nodes.info()
	a.Limits = attempt.Limits{Prompt: len(f.choice.Prompt) + f.kept, BlockTokens: int(c.BlockTokens), Vocab: c.Vocab}
	err = f.place(ctx, a, a.First())
	if err == nil && a.Undirected(a.Second()) && a.GoAhead(a.decode.node.outlook()) {
		f.metrics.Ahead()
		err = f.place(ctx, a, a.Second())
	}
	if err == nil {
		err = f.follow(ctx, a)
	}
	// What ended the context is the client's doing, or the failure of another choice, which has
	// counted it.
	if cause := context.Cause(ctx); err != nil && (cause == nil || !errors.Is(err, cause)) {
		f.blame(a, err)
	}
	f.leave(ctx, a, err)
	switch {
	case !unreliable(err) && a.Running():
		f.kept = f.want - a.Left()
	case f.events == nil && f.cut == nil:
		f.delivered = f.delivered[:f.kept] // nobody has read them
	}
	return err
}

// unreliable reports whether the tokens of an attempt that ended with err are drawn again from
// other nodes, and compared where the client has them. Those of a prompt whose KV has not landed
// are too, whatever the error.
func unreliable(err error) bool {
	return errors.Is(err, attempt.ErrBroken) || errors.Is(err, attempt.Content)
}

// follow reads what the nodes say of an attempt until it ends, or ctx does: then the error is
// its cause, unless the client has its whole answer and only the account of it is to come.
func (f *flight) follow(ctx context.Context, a *submission) error {
	for {
		select {
		case <-f.inbox.ready:
		case <-ctx.Done():
			if f.end.Finish != "" {
				return nil
			}
			return context.Cause(ctx)
		}
		if done, err := f.advance(ctx, a); done || err != nil {
			return err
		}
	}
}

// advance reads the inbox once, in the order in which the messages came.
func (f *flight) advance(ctx context.Context, a *submission) (done bool, err error) {
	f.arrivals, f.reports = f.inbox.take(f.arrivals, f.reports)
	defer clear(f.reports) // they hold whole block tables
	f.ready = f.ready[:0]
	var fault error
	read := 0
	tokens := func(until int) {
		for ; read < until && fault == nil && !done; read++ {
			f.ready, fault = a.token(f.ready, f.arrivals[read])
			if fault == nil && a.Handed() {
				f.handed(a)
			}
		}
	}
	for i, r := range f.reports {
		if tokens(r.after); fault != nil || done {
			break
		}
		var next attempt.Next
		if a.doubted != nil {
			fault = f.verdict(a, r)
		} else if next, fault = a.report(&f.ready, r); fault != nil {
			fault = f.doubt(a, r, f.reports[i+1:], fault)
		}
		if r.failed.GetCode() == proto.FailCode_FAIL_UNDIRECTED {
			f.metrics.Undirected()
			if next == attempt.Wait && fault == nil && r.leg == a.compute {
				f.queue(a.decode.node, true) // for the blocks, as if it had not gone ahead
			}
		}
		switch next {
		case attempt.Done:
			done = true
		case attempt.Submit:
			r.turn.Wait()
			fault = f.place(ctx, a, a.Second())
			if a.Second() == handoff.DecodeLeg { // else the age that prefill is told has it
				f.own += f.proxy.clock.Now() - r.at
			}
		case attempt.Direct:
			a.compute.node.tell(a.compute, &proto.ToNode{Kind: &proto.ToNode_Direct{Direct: &proto.Direct{Id: a.compute.id, Kv: a.kv}}})
		default:
			f.moveOn(a, next)
		}
		r.turn.Pass() // whatever came of it: the next request waits
		if r.prefilled != nil && a.Handoff().Moves(handoff.PrefillLeg) && r.leg == a.compute && a.decode != nil {
			a.decode.node.expect(a.decode, !a.Running()) // it has all of its KV
		}
	}
	tokens(len(f.arrivals))
	if errors.Is(fault, attempt.ErrBroken) && f.end.Finish == "" {
		return false, fault // no token of now goes out: they are drawn again
	}
	if fault != nil && a.Complete() {
		// Every token is out; what failed is only the account of them.
		if errors.Is(fault, attempt.ErrBroken) {
			f.blame(a, fault)
		}
		done, fault = true, nil
	}
	if err := f.deliver(a, done); err != nil {
		return false, err
	}
	if f.end.Finish != "" && !a.Complete() && !done {
		return true, nil // a stop string or token: nobody wants what is still to come
	}
	if !done && fault == nil {
		f.consider(ctx, a)
		for _, l := range []*leg{a.compute, a.decode} { // what is missing has happened
			if l != nil && a.Complete() {
				l.node.expect(l, true)
			}
		}
	}
	return done, fault
}

// deliver sends the tokens in f.ready on, up to one that stops the answer, and why it ends
// with the last one. Times are those at which tokens came off the nodes' streams, before any
// wait in here: ITL is the nodes' and the network's, not this goroutine's. A failure to send
// is that the client has gone.
func (f *flight) deliver(a *submission, done bool) error {
	f.ids = f.ids[:0]
	fresh := f.ready[:0]
	for _, t := range f.ready {
		at, id := f.kept+t.Position, f.req.Tokenizer.FromNode(t.ID)
		switch {
		case at >= len(f.delivered):
			f.ids, fresh = append(f.ids, id), append(fresh, t)
		case f.delivered[at] != id:
			return &openai.Error{Status: http.StatusBadGateway, Type: "server_error", Code: "wrong_token", Message: fmt.Sprintf(
				"request %s: token %d of the answer is %d, from a node that broke the protocol or had wrong KV; %s draws %d: discard the answer and ask again",
				f.requestID, at, f.delivered[at], cmp.Or(f.decodeNode, f.prefillNode), id)}
		}
	}
	f.ready = fresh
	out := openai.Tokens{IDs: f.ids, Cut: f.cut}
	last := f.end.Finish == "" && (done || a.Complete())
	if last {
		out.End.Finish = "length"
		if f.eos && a.Complete() {
			out.End.Finish = "stop"
		}
	}
	if f.cut != nil && (len(f.ids) > 0 || last) {
		if n, by, stopped := f.cut.Add(f.ids, last); stopped {
			last, out.IDs, out.End = true, f.ids[:n], openai.End{Finish: "stop", Matched: by}
		}
	}
	if last {
		f.e2e = f.proxy.clock.Now() - f.accepted
		f.end, out.E2E = out.End, f.e2e
	}
	if len(out.IDs) == 0 && !last {
		return nil
	}
	for i, t := range f.ready[:len(out.IDs)] {
		if len(f.delivered) == 0 && i == 0 {
			f.first = t.At
			f.metrics.FirstToken(t.At - f.accepted)
		} else {
			// Receivers of two streams stamp before they queue for the inbox.
			t.At = max(t.At, f.last)
			f.metrics.NextToken(t.At - f.last)
		}
		f.last = t.At
	}
	isFirst := len(f.delivered) == 0 && len(out.IDs) > 0
	f.delivered = append(f.delivered, out.IDs...)
	if a.Running() && f.waiting {
		f.unqueue(true)
		f.proxy.started(f)
	}
	if f.events == nil {
		return nil
	}
	out.Cached = min(max(f.cached, a.cached), uint32(len(f.choice.Prompt)))
	if err := f.events.(tokenStream).Tokens(f.index, out); err != nil {
		return fmt.Errorf("%w: %w", attempt.ClientGone, err)
	}
	if isFirst {
		f.own += f.proxy.clock.Now() - f.first
	}
	return nil
}

// place chooses a node for a leg and submits it there, with what the first leg has offered if it
// is the second. A leg that gave up goes to the node that was chosen for it. Submit is queued for
// the node's stream and not waited for.
func (f *flight) place(ctx context.Context, a *submission, kind handoff.Leg) (err error) {
	m := cmp.Or(nodeOf(*a.of(kind)), a.local)
	if m == nil {
		if m, err = f.choose(a.choiceOf(kind)); err != nil {
			return err
		}
	}
	l, s := f.leg(ctx, a, kind)
	if err := m.submit(l, s); err != nil {
		return fmt.Errorf("%s: %w", m.info.Id, err)
	}
	*a.of(kind), a.kv = l, nil // s has it, a whole block table
	f.queue(m, !s.Ahead)
	if kind != handoff.DecodeLeg {
		f.prefillNode = m.info.Id
	}
	if kind != handoff.PrefillLeg {
		f.decodeNode = m.info.Id
	}
	return nil
}

// choose asks placement for a node; nil if ch is of a local one and there is none.
func (f *flight) choose(ch choice) (*member, error) {
	if f.prefix == nil {
		f.prefix = f.proxy.nodes.prefix(ch, kvcache.Root(f.choice.Adapter, f.choice.Salt), f.choice.Prompt)
	}
	ch.avoid, ch.prompt, ch.all = f.avoid, len(f.choice.Prompt)+len(f.delivered)+1, len(f.choice.Prompt)+f.want
	return f.proxy.nodes.place(ch, placement.Request{
		Tokens: len(f.choice.Prompt), MaxTokens: f.want - f.kept, Adapter: f.choice.Adapter, Prefix: f.prefix,
	})
}

// leg is a leg of a kind, and what a node is told of it.
func (f *flight) leg(ctx context.Context, a *submission, kind handoff.Leg) (*leg, *proto.Submit) {
	l := &leg{kind: legs[kind], inbox: f.inbox}
	known := f.kept
	if kind == handoff.MigrationLeg {
		known = f.want - a.Left()
	}
	first, words := f.req.Tokenizer.Words()
	s := &proto.Submit{
		RequestId:  f.requestID,
		Leg:        l.kind,
		Handoff:    a.Handoff().Name,
		MaxTokens:  uint32(a.MaxTokens(kind)),
		DeadlineMs: proto.RemainingMS(ctx),
		AgeUs:      proto.Microseconds(f.proxy.clock.Now() - f.accepted), // a duration: clocks of machines differ
		Prior:      uint32(known),
		IgnoreEos:  f.choice.IgnoreEOS,
		Variant:    f.choice.Variant,
		Adapter:    f.choice.Adapter, AdapterRank: f.proxy.adapters.Rank(f.choice.Adapter), CacheSalt: f.choice.Salt,
		FirstWord: first,
		Words:     words,
		Kv:        a.kv,
		Ahead:     a.Undirected(kind),
		Movable:   f.entry != nil && kind != handoff.PrefillLeg,
	}
	if l.kind != proto.Leg_LEG_DECODE {
		l.tokens = len(f.choice.Prompt) + known
	}
	s.Prompt = make([]byte, 0, 4*(len(f.choice.Prompt)+known)) // as nodes know the ids
	for _, ids := range [][]uint32{f.choice.Prompt, f.delivered[:known]} {
		for _, id := range ids {
			s.Prompt = binary.LittleEndian.AppendUint32(s.Prompt, f.req.Tokenizer.ToNode(id))
		}
	}
	return l, s
}

// queue puts the request into the backlog of the node that has it now. worked is whether what it
// waited for before has been done.
func (f *flight) queue(m *member, worked bool) {
	f.unqueue(worked)
	f.proxy.placed(f)
	f.queued, f.tokens = m, len(f.choice.Prompt)+f.kept
	m.backlog.Enter(f.proxy.clock.Now(), f.tokens)
}

// unqueue takes it out, worked off or given up: only what was worked off says how fast the
// node is.
func (f *flight) unqueue(worked bool) {
	if f.queued != nil {
		f.queued.backlog.Exit(f.proxy.clock.Now(), f.tokens, worked)
		f.queued = nil
	}
}

// blame marks the nodes the next attempt should stay clear of, and has the failure
// counted against them. A transfer has two ends, and the one that reports it is often not
// the one at fault: both are avoided, and the registry counts for each node and for the pair.
// Where there is no path between them, another pair may have either.
func (f *flight) blame(a *submission, err error) {
	failed, ok := errors.AsType[*attempt.LegError](err)
	if !ok {
		return
	}
	failed.RequestID = f.requestID
	if f.avoid == nil {
		f.avoid = make(map[*member]attempt.Fault)
	}
	compute, decode := a.concerned(failed.Node)
	avoid := func(m *member) {
		if failed.Fault != attempt.NoPath || compute == nil || decode == nil {
			f.avoid[m] = failed.Fault
		}
	}
	for _, pair := range [][2]*leg{{compute, decode}, {decode, compute}, {a.target, nil}} {
		at, other := pair[0], pair[1]
		switch {
		case at == nil:
		case at.node.info.Id == failed.Node:
			avoid(at.node)
			var peer *member
			if other != nil {
				peer = other.node
				if failed.Fault.Owner() == attempt.Pair {
					failed.Peer = peer.info.Id
				}
			}
			f.proxy.nodes.failed(at.node, peer, failed)
		case failed.Fault.Owner() == attempt.Pair:
			avoid(at.node)
		}
	}
}

// leave lets go of an attempt's legs, telling the nodes to drop them unless
// all went well, and adds up its account. What comes of these legs after it is not looked at.
func (f *flight) leave(ctx context.Context, a *submission, err error) {
	f.unqueue(err == nil)
	f.stay(a)
	for _, l := range []*leg{a.compute, a.decode} {
		switch {
		case l == nil:
		case err == nil && a.Ended():
			l.node.release(l)
		case err != nil && ctx.Err() == nil:
			l.node.cancelLeg(l, err.Error(), errors.Is(err, attempt.Content))
		case err != nil:
			l.node.cancelLeg(l, context.Cause(ctx).Error(), false)
		default: // complete without a word of the end
			l.node.cancelLeg(l, "complete", false)
		}
	}
	if err == nil && a.Ended() {
		f.proxy.nodes.succeeded(nodeOf(a.compute), nodeOf(a.decode))
	}
	f.breakdown.Sum(&a.breakdown)
	f.cached = max(f.cached, a.cached)
}

func nodeOf(l *leg) *member {
	if l == nil {
		return nil
	}
	return l.node
}

// counts are the tokens of the prompt and those delivered; 0 where engines did not say.
func (f *flight) counts() (prompt, output int) {
	if f.usage != nil {
		return int(f.usage.Prompt), int(f.usage.Completion)
	}
	return len(f.choice.Prompt), len(f.delivered)
}

// cachedTokens is how much of the prompt a prefix cache had. A retry's prompt has part of the
// answer too.
func (f *flight) cachedTokens() uint32 { return min(f.cached, uint32(len(f.choice.Prompt))) }
