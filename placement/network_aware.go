package placement

import "time"

// NetworkAware takes the node that costs a request the least time, with what the network takes:
// the idea of NetKV (Ojewale, arXiv 2606.03910, 2026), which sends a request to the decode node
// with the least sum of transfer, queue and step.
const NetworkAware = "network-aware"

var networkAwareKind = kind[placer]{NetworkAware, "the time that computing, moving the KV over the node's link and decoding take", func(blockTokens int, compute bool) Policy {
	return &networkAware{newCaches(blockTokens), compute}
}}

// networkAware adds up in time what a node costs a request. Where prompts are computed
//
//	(waiting tokens + the prompt's, less those cached) x time of a token
//	+ (queued KV + the prompt's) / what the link delivers
//
// and where they are only decoded
//
//	(queued KV + the prompt's, less what is cached) / what the link delivers
//	+ legs x time that a sequence adds to a step x steps of this request
//
// The last is what the others there cost the request until its end: TTFT alone would have the
// fast links' nodes take all that their memory holds. What NetKV's operator tells of tiers and
// congestion, a node says here of its own link; the link of the node that has the other leg is
// common to all candidates.
type networkAware struct {
	caches
	compute bool
}

func (p *networkAware) WantsPrefix() bool { return true }

func (p *networkAware) Place(r Request, candidates []Candidate) int {
	best := least(p.next(), candidates, func(i int) int {
		c := &candidates[i]
		return int(p.cost(c, &r, p.saved(c, &r)))
	})
	p.add(&candidates[best], &r)
	return best
}

func (p *networkAware) cost(c *Candidate, r *Request, saved int) time.Duration {
	if p.compute {
		// Of a node whose speed nobody knows, tokens still count.
		return time.Duration(c.WaitingTokens+r.Tokens-saved)*max(c.TokenTime, 1) + c.Transfer(r.KVBytes)
	}
	bytes := r.KVBytes
	if r.Tokens > 0 {
		bytes -= r.KVBytes / int64(r.Tokens) * int64(saved)
	}
	return c.Transfer(bytes) + time.Duration(c.InFlight)*c.SequenceTime*time.Duration(r.MaxTokens)
}
