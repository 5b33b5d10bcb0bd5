package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"kvferry/attempt"
	"kvferry/connector"
	"kvferry/handoff"
	"kvferry/kvcache"
	"kvferry/load/dispatch"
)

// A flight is a request on its way through the cluster, as the proxy sees it. Package attempt
// says what comes next.
type flight struct {
	Outcome
	attempt         *attempt.Attempt
	id              uint64
	want            int // tokens, of those asked for
	prompt          []kvcache.Token
	hashes          []kvcache.Hash
	hashed          bool
	arrived         time.Duration
	compute, decode *node              // of the leg that computes the prompt, and of that which decodes
	target          *node              // that is to take it over; nil if none is
	known           int                // of its tokens there
	moving          connector.Migrated // what the node says that it leaves
	out             []kvcache.Token    // its answer so far, if requests migrate
	to              connector.Remote   // decode's blocks, of a prompt that went ahead
	continued       bool               // others go on with its answer,
	answer          []kvcache.Token
	parts           int       // of its KV that are sent
	landed          *transfer // the last of them
}

func (f *flight) prefix(blockTokens int) []kvcache.Hash {
	if !f.hashed {
		f.hashes, f.hashed = prefixHashes(f.Adapter, f.prompt, blockTokens), true
	}
	return f.hashes
}

// prefixHashes stands for kvcache.PrefixHashes, at a small part of its cost: nobody
// forges the prompts of a simulation, so 64 mixed bits will do where daemons need
// SHA-256. Ten million blocks collide with a probability of 3e-6.
func prefixHashes(adapter string, prompt []kvcache.Token, blockTokens int) []kvcache.Hash {
	hashes := make([]kvcache.Hash, len(prompt)/blockTokens)
	var h uint64
	for _, c := range []byte(adapter) {
		h = (h ^ uint64(c)) * 0x9e3779b97f4a7c15
	}
	for i := range hashes {
		block := prompt[i*blockTokens : (i+1)*blockTokens]
		for ; len(block) >= 4; block = block[4:] {
			h = fold(h, uint64(block[0])|uint64(block[1])<<32, uint64(block[2])|uint64(block[3])<<32)
		}
		for _, t := range block {
			h = fold(h, uint64(t), 1)
		}
		binary.LittleEndian.PutUint64(hashes[i][:], h)
	}
	return hashes
}

// fold mixes two words into a hash by a multiplication to 128 bits, whose halves it adds up bit by bit (as wyhash
// does, Wang Yi 2019).
func fold(h, a, b uint64) uint64 {
	high, low := bits.Mul64(h^a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9)
	return high ^ low
}

// arrived submits the request that is there now.
func (c *cluster) arrived(s *dispatch.Sending) {
	c.stats.Requests++
	f := &flight{id: uint64(s.Index) + 1, prompt: s.Conversation(), arrived: c.now, continued: s.Continued}
	f.Outcome = Outcome{Index: s.Index, ID: s.ID, Adapter: s.Adapter, Due: s.Due, Arrived: c.now, PromptTokens: len(f.prompt), MaxTokens: s.MaxTokens}
	c.flights[f.id] = f
	c.considerLater()
	h := c.cfg.Handoff
	want := f.MaxTokens
	if s.MayStop {
		if n := c.cfg.EOS.Draw(f.prompt, 0); n <= want {
			want, f.Stopped = n, true
		}
	}
	f.want = want
	if f.compute = c.placeLocal(f); f.compute != nil || c.cfg.Nondisagg > 0 {
		h = handoff.None
	}
	f.attempt = attempt.New(h, want)
	c.submit(f, f.attempt.First(), connector.Remote{}, c.now)
	if f.attempt.Undirected(f.attempt.Second()) && f.attempt.GoAhead(f.decode.outlook()) {
		c.submit(f, f.attempt.Second(), connector.Remote{}, c.now)
	}
}

// submit chooses a node for a leg, unless one has given it up, and brings it there. from is what
// the first leg has offered to the second, and at is when the proxy knows of it.
func (c *cluster) submit(f *flight, leg handoff.Leg, from connector.Remote, at time.Duration) {
	g, node := &c.compute, &f.compute
	if leg == handoff.DecodeLeg {
		g, node = &c.decode, &f.decode
	}
	n := *node
	if n == nil {
		n = c.place(g, f)
		*node = n
	}
	n.load.InFlight++
	s := connector.Submit{
		ID: f.id, Leg: leg, Handoff: f.attempt.Handoff(), Prompt: f.prompt, MaxTokens: f.attempt.MaxTokens(leg), Age: at - f.arrived, Remote: from,
		Ahead: f.attempt.Undirected(leg), Adapter: f.Adapter, AdapterRank: c.cfg.Ranks.Of(f.Adapter),
	}
	if !f.continued {
		s.Words.Count = 1 // nobody reads the answer
	}
	if c.cfg.PrefixCaching {
		s.Prefix = f.prefix(c.cfg.Profile.KVGeometry.BlockTokens)
	}
	if leg == handoff.DecodeLeg { // until the node says so itself
		n.load.LinkQueuedBytes += c.kvBytes(f)
	} else {
		n.load.WaitingTokens += len(s.Prompt)
	}
	n.coming++
	n.comingBlocks += c.cfg.Profile.KVGeometry.Blocks(len(f.prompt))
	c.send(n, s, at+c.cfg.RPC)
}

// legOf is which leg of a flight a node carries.
func (f *flight) legOf(n *node) handoff.Leg {
	switch {
	case n == f.target:
		return handoff.MigrationLeg
	case n == f.decode:
		return handoff.DecodeLeg
	case f.attempt.First() == handoff.FullLeg:
		return handoff.FullLeg
	}
	return handoff.PrefillLeg
}

// proceed does what the attempt wants done after a node has said something.
func (c *cluster) proceed(n *node, f *flight, o *connector.Offer, first kvcache.Token, next attempt.Next, err error) {
	switch {
	case err != nil:
		c.err = fmt.Errorf("sim: request %d on %s: %w", f.Index, n.name, err)
	case next == attempt.Submit:
		c.submit(f, f.attempt.Second(), remote(n, o, first), c.now+c.cfg.RPC)
	case next == attempt.Direct:
		f.to = remote(n, o, 0)
		c.send(f.compute, connector.Direct{ID: f.id, Remote: f.to}, c.now+2*c.cfg.RPC)
	case next == attempt.Migrate:
		c.send(*f.generates(), connector.Migrate{ID: f.id, Remote: remote(n, o, 0), Known: f.known}, c.now+2*c.cfg.RPC)
	case next == attempt.Stay:
		c.stay(f)
	case next == attempt.Done:
		c.end(f)
	}
}

// reserved goes on with a request whose decode node has blocks for it.
func (c *cluster) reserved(n *node, o *connector.Offer) {
	f := c.flights[o.ID]
	if f == nil || !f.on(n) {
		return
	}
	next, err := f.attempt.Reserved(f.legOf(n), true)
	c.proceed(n, f, o, 0, next, err)
}

// prefilled ends a prefill leg.
func (c *cluster) prefilled(n *node, p *connector.Prefilled) {
	f := c.legEnded(n, p.ID, p.Cached, &p.Breakdown)
	if f == nil {
		return
	}
	next, err := f.attempt.Prefilled(f.legOf(n), p.Offer != nil)
	c.proceed(n, f, p.Offer, p.FirstToken, next, err)
}

func remote(n *node, o *connector.Offer, first kvcache.Token) connector.Remote {
	r := connector.Remote{Node: n.name, Transfer: o.Transfer, Blocks: make([]kvcache.Entry, len(o.Blocks)), Tokens: o.Tokens, FirstToken: first}
	for i, b := range o.Blocks {
		r.Blocks[i] = kvcache.Entry{Index: o.First + i, Ref: b}
	}
	return r
}

// finished ends a leg with the last token.
func (c *cluster) finished(n *node, d *connector.Finished) {
	f := c.legEnded(n, d.ID, d.Cached, &d.Breakdown)
	if f == nil {
		return
	}
	next, err := f.attempt.Finished(f.legOf(n))
	c.proceed(n, f, nil, 0, next, err)
}

// token takes a token that leaves its node.
func (c *cluster) token(n *node, t connector.Token) {
	f := c.flights[t.ID]
	if f == nil || !f.on(n) {
		return
	}
	var err error
	c.tokens, err = f.attempt.Token(c.tokens[:0], f.legOf(n), attempt.Token{Position: t.Position, ID: t.Token, At: c.now + c.cfg.RPC}) // at the proxy, and its client
	if err != nil {
		c.err = fmt.Errorf("sim: request %d: %w", f.Index, err)
	}
	c.outAll(f)
	if f.attempt.Handed() {
		c.handed(f)
	}
}

// outAll has the client notice tokens that are in order.
func (c *cluster) outAll(f *flight) {
	for _, t := range c.tokens {
		c.out(f, t)
	}
}

// out has the client notice the next token.
func (c *cluster) out(f *flight, t attempt.Token) {
	if f.Tokens == 0 {
		f.First = t.At
	} else if c.cfg.OnGap != nil {
		c.cfg.OnGap(t.At - f.Last)
	}
	f.Tokens++
	f.Last = t.At
	if f.continued {
		f.answer = append(f.answer, kvcache.Token(t.ID))
	}
	if c.migration != nil {
		f.out = append(f.out, kvcache.Token(t.ID))
	}
	if c.cfg.RecordTokens {
		f.TokenTimes = append(f.TokenTimes, t.At)
	}
}

// legEnded accounts for a leg that ended well.
func (c *cluster) legEnded(n *node, id uint64, cached int, b *connector.Breakdown) *flight {
	f := c.flights[id]
	if f == nil || !f.on(n) {
		return nil
	}
	if n == f.compute && f.Migrations == 0 {
		f.Cached = cached
	}
	f.Breakdown.Add(b)
	n.load.InFlight--
	return f
}

// end is of a request of which all is there, or that was refused.
func (c *cluster) end(f *flight) {
	delete(c.flights, f.id)
	c.letGo(f)
	f.Migrations, f.Paused = f.attempt.Migrations()
	c.stats.Migrations += f.Migrations
	c.stats.MigratedBytes += f.Breakdown.Migrated
	c.stats.Ended++
	if f.Err != nil {
		c.stats.Failed++
	}
	c.stats.Duration = max(c.stats.Duration, f.Last)
	c.stats.KVBytes += f.Breakdown.Bytes
	if c.cfg.OnOutcome != nil {
		c.cfg.OnOutcome(&f.Outcome)
	}
	if c.cfg.OnProgress != nil && c.stats.Ended&0x3ff == 0 {
		c.cfg.OnProgress(c.stats.Ended)
	}
	c.queue.Ended(f.Index, f.Last, dispatch.Answer{Tokens: f.answer}, f.Err != nil)
	c.expect()
}

// failed ends a leg that a node refused, and the request with it. Only requests
// that can never be served are refused, by the first node that they reach, or if the prompt went
// ahead by either: the other one is told. One that went ahead in vain is submitted again.
func (c *cluster) failed(n *node, e *connector.Failed) {
	f := c.flights[e.ID]
	if f == nil || !f.on(n) {
		return
	}
	if n == f.target {
		next, err := f.attempt.Failed(handoff.MigrationLeg, e.Err)
		c.proceed(n, f, nil, 0, next, err)
		return
	}
	if errors.Is(e.Err, connector.ErrUndirected) {
		n.load.InFlight--
		switch next, err := f.attempt.GaveUp(f.legOf(n)); {
		case err != nil:
			c.err = fmt.Errorf("sim: request %d on %s: %w", f.Index, n.name, err)
		case next == attempt.Submit:
			c.submit(f, f.attempt.Second(), f.to, c.now+c.cfg.RPC)
		}
		return
	}
	f.Err, f.Last = e.Err, c.now
	for _, other := range [...]*node{f.compute, f.decode} {
		switch {
		case other == nil || other == n:
		case f.attempt.Undirected(handoff.PrefillLeg):
			other.load.InFlight--
			c.send(other, connector.Cancel{ID: f.id}, c.now+2*c.cfg.RPC)
		default:
			c.err = fmt.Errorf("sim: request %d failed on %s after %s had it: %w", f.Index, n.name, other.name, e.Err)
			return
		}
	}
	n.load.InFlight--
	c.end(f)
}
