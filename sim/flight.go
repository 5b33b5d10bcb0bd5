package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"kvferry/connector"
	"kvferry/kvcache"
)

// A flight is a request on its way through the cluster, as the proxy sees it.
//
//	full, or one token:  ── FULL, PREFILL ──▶ node, tokens from there
//	v0, pull:            ── PREFILL ──▶ P, computed ── DECODE ──▶ D, tokens from D
//	layerwise:           ── DECODE ──▶ D, reserved ── PREFILL ──▶ P, first token from P, the others from D
type flight struct {
	Outcome
	id              uint64
	prompt          []kvcache.Token
	hashes          []kvcache.Hash
	hashed          bool
	arrived         time.Duration
	compute         *node // of the leg that computes the prompt
	prefill, decode *node
	legs            int       // that have not ended
	parts           int       // of its KV that are sent
	landed          *transfer // the last of them
}

func (f *flight) prefix(blockTokens int) []kvcache.Hash {
	if !f.hashed {
		f.hashes, f.hashed = prefixHashes(f.prompt, blockTokens), true
	}
	return f.hashes
}

// prefixHashes stands for kvcache.PrefixHashes, at a fifth of its cost: nobody
// forges the prompts of a simulation, so 64 mixed bits will do where daemons need
// SHA-256. Ten million blocks collide with a probability of 3e-6.
func prefixHashes(prompt []kvcache.Token, blockTokens int) []kvcache.Hash {
	hashes := make([]kvcache.Hash, len(prompt)/blockTokens)
	var h uint64
	for i := range hashes {
		for _, t := range prompt[i*blockTokens : (i+1)*blockTokens] {
			h = (h ^ uint64(t)) * 0x9e3779b97f4a7c15
			h ^= h >> 32
		}
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 29
		binary.LittleEndian.PutUint64(hashes[i][:], h)
	}
	return hashes
}

// nextArrival asks the load for its next request.
func (c *cluster) nextArrival() {
	r, ok, err := c.load.Next()
	switch {
	case err != nil:
		c.err = err
	case !ok:
	case r.At < c.now:
		c.err = fmt.Errorf("sim: the load goes back in time: request at %v after %v", r.At, c.now)
	default:
		c.coming = r
		c.agenda.push(r.At, event{kind: arrive})
	}
}

// arrived submits the request that is there now.
func (c *cluster) arrived() {
	c.stats.Requests++
	f := &flight{id: uint64(c.stats.Requests), prompt: c.coming.Prompt, arrived: c.now}
	f.Outcome = Outcome{Index: c.stats.Requests - 1, Arrived: c.now, PromptTokens: len(f.prompt), MaxTokens: c.coming.MaxTokens}
	c.flights[f.id] = f
	s := connector.Submit{ID: f.id, Prompt: f.prompt, MaxTokens: f.MaxTokens}
	switch {
	case c.cfg.Nondisagg > 0:
		f.legs, f.compute = 1, c.place(&c.compute, f)
		c.submit(f.compute, s)
	case f.MaxTokens == 1:
		s.Leg, f.legs, f.compute = connector.PrefillLeg, 1, c.place(&c.compute, f)
		c.submit(f.compute, s)
	case c.cfg.Handoff == connector.Layerwise:
		s.Leg, s.Handoff = connector.DecodeLeg, connector.Layerwise
		f.legs, f.decode = 2, c.place(&c.decode, f)
		c.submit(f.decode, s)
	default:
		s.Leg, s.Handoff, s.MaxTokens = connector.PrefillLeg, c.cfg.Handoff, 1
		f.legs, f.compute = 2, c.place(&c.compute, f)
		f.prefill = f.compute
		c.submit(f.prefill, s)
	}
	c.nextArrival()
}

// reserved goes on with a layerwise request whose decode node has blocks for it.
func (c *cluster) reserved(n *node, o connector.Offer) {
	f := c.flights[o.ID]
	if f == nil || f.Err != nil {
		return
	}
	f.compute = c.place(&c.compute, f)
	f.prefill = f.compute
	c.submit(f.prefill, connector.Submit{
		ID: f.id, Leg: connector.PrefillLeg, Handoff: connector.Layerwise, Prompt: f.prompt, MaxTokens: 1, Remote: remote(n, &o, 0),
	})
}

// prefilled ends a prefill leg and, under v0 and pull, starts the decode leg.
func (c *cluster) prefilled(n *node, p connector.Prefilled) {
	f := c.legEnded(n, p.ID, p.Cached, &p.Breakdown)
	if f == nil || p.Offer == nil || c.cfg.Handoff == connector.Layerwise {
		return
	}
	f.decode = c.place(&c.decode, f)
	c.submit(f.decode, connector.Submit{
		ID: f.id, Leg: connector.DecodeLeg, Handoff: c.cfg.Handoff, Prompt: f.prompt, MaxTokens: f.MaxTokens, Remote: remote(n, p.Offer, p.FirstToken),
	})
}

func remote(n *node, o *connector.Offer, first kvcache.Token) connector.Remote {
	r := connector.Remote{Node: n.name, Transfer: o.Transfer, Blocks: make([]connector.Block, len(o.Blocks)), Tokens: o.Tokens, FirstToken: first}
	for i, b := range o.Blocks {
		r.Blocks[i] = connector.Block{Index: o.First + i, Ref: b}
	}
	return r
}

func (c *cluster) finished(n *node, d connector.Finished) {
	c.legEnded(n, d.ID, d.Cached, &d.Breakdown)
}

// token takes a token that leaves its node.
func (c *cluster) token(t connector.Token) {
	f := c.flights[t.ID]
	if f == nil || f.Err != nil {
		return
	}
	if t.Position != f.Tokens {
		c.err = fmt.Errorf("sim: request %d: token %d came as its %d-th", f.Index, t.Position, f.Tokens)
		return
	}
	at := c.now + c.cfg.RPC // at the proxy, and its client
	if f.Tokens == 0 {
		f.First = at
	} else if c.cfg.OnGap != nil {
		c.cfg.OnGap(at - f.Last)
	}
	f.Tokens++
	f.Last = at
	if c.cfg.RecordTokens {
		f.TokenTimes = append(f.TokenTimes, at)
	}
}

// legEnded accounts for a leg that ended well, and ends the request with its last.
func (c *cluster) legEnded(n *node, id uint64, cached int, b *connector.Breakdown) *flight {
	f := c.flights[id]
	if f == nil {
		return nil
	}
	if n == f.compute {
		f.Cached = cached
	}
	f.Breakdown.Add(b)
	c.endLeg(n, f)
	return f
}

func (c *cluster) endLeg(n *node, f *flight) {
	n.load.InFlight--
	f.legs--
	if f.legs > 0 {
		return
	}
	delete(c.flights, f.id)
	if f.Err == nil && f.Tokens != f.MaxTokens {
		c.err = fmt.Errorf("sim: request %d ended after %d of %d tokens", f.Index, f.Tokens, f.MaxTokens)
		return
	}
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
}

// failed ends a leg that a node refused, and the request with it. Only requests
// that can never be served are refused, by the first node that they reach.
func (c *cluster) failed(n *node, e connector.Failed) {
	f := c.flights[e.ID]
	if f == nil {
		return
	}
	f.Err, f.Last = e.Err, c.now
	for _, other := range [...]*node{f.compute, f.decode} {
		if other != nil && other != n {
			c.err = fmt.Errorf("sim: request %d failed on %s after %s had it: %w", f.Index, n.name, other.name, e.Err)
			return
		}
	}
	f.legs = 1
	c.endLeg(n, f)
}
