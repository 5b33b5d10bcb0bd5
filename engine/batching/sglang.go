package batching

import (
	"cmp"
	"math"
	"slices"

	"kvferry/engine"
	"kvferry/kvcache"
)

// sglang is what SGLang does (read in 0.5.23; managers/scheduler.py, get_next_batch_to_run and
// update_running_batch, and managers/schedule_policy.py, PrefillAdder): prompts go first, alone.
// A step has those that wait up to MaxBatchedTokens (max_prefill_tokens) and ChunkTokens
// (chunked_prefill_size). The last is cut where ChunkTokens ends, and goes on first in the next
// step: there is one such prompt at a time. Where none is cut, the first may be longer than
// MaxBatchedTokens, and no other goes beyond. Decodes run when no prompt can.
//
// A prompt is admitted if the pool has room for it, for all of its output, and for a share of
// what the others may still generate, new_token_ratio. The share begins at 0.7 times
// Conservativeness, falls with each step of decodes, and is estimated anew when the pool
// is full all the same: then sequences are retracted, those with the fewest tokens of output first,
// and wait behind all others. So a prompt that does not fit is not tried again before
// somebody has left (batch_is_full; here, refusal).
//
// Budgets are in tokens, as with its page_size of 1. What it does otherwise for requests that
// ignore EOS without a radix cache is left out: an admission that is exact.
type sglang struct {
	first, least, decay float64 // of the ratio: at first, at last, and a step of decodes
	ratio               float64
	interval            int // decode steps that are still to come before the next with prompts
}

// Constants of SGLang's environ.py and schedule_policy.py.
const (
	initNewTokenRatio      = 0.7
	minNewTokenRatioFactor = 0.14
	newTokenRatioSteps     = 600
	retractDecodeSteps     = 20
	clipMaxNewTokens       = 4096
	// Of the order by longest prefix: a queue that is longer is served as it came, prompts
	// of which no more tokens are cached are compared with each other, and of
	// those that share as many the first goes before the rest.
	longestPrefixQueue = 128
	inBatchPrefix      = 32
)

func newSGLang(c *Config) *sglang {
	p := &sglang{first: min(initNewTokenRatio*c.Conservativeness, 1)}
	p.least = p.first * minNewTokenRatioFactor
	p.decay = (p.first - p.least) / newTokenRatioSteps
	p.ratio = p.first
	return p
}

func (*sglang) kind() engine.Kind { return engine.Prefill }

func (*sglang) piecemeal() bool { return false }

func (p *sglang) form(s *Scheduler, step *engine.Step) {
	if p.interval == 0 || len(s.running) == 0 {
		p.prompts(s, step)
	}
	if len(step.Works) > 0 {
		p.interval = s.cfg.PrefillDecodeInterval
		return
	}
	p.interval = max(p.interval-1, 0)
	if len(s.running) == 0 {
		p.ratio = p.first // idle
		return
	}
	p.decodes(s, step)
}

// prompts adds what waits, until a budget, the batch or the pool is full.
func (p *sglang) prompts(s *Scheduler, step *engine.Step) {
	budget, chunk := s.cfg.MaxBatchedTokens, s.cfg.ChunkTokens
	if chunk == 0 {
		chunk = math.MaxInt
	}
	p.sort(s)
	admitted := 0
	for _, q := range s.waiting {
		begun := len(q.Table.Refs()) > 0
		if q.KV != engine.Compute || budget <= 0 || chunk <= 0 || !begun && s.full(step, admitted) {
			return
		}
		if !s.admits(q) {
			if begun {
				admitted++
			}
			continue
		}
		if !begun && !s.allocate(q) {
			s.starved = true
			return
		}
		admitted++
		if q.loading {
			continue
		}
		n := min(q.Len()-q.Held, chunk)
		if s.cfg.ChunkTokens == 0 && admitted > 1 && n >= budget {
			s.evict(q)
			return
		}
		s.work(step, q, n)
		budget -= n
		chunk -= n
	}
}

// sort has prompts go first, if so configured, whose longest prefix is cached, after those that have
// their blocks: the one that is cut, and those that were loaded. Of several that share a prefix which is not, one goes ahead, and
// the others come when it is cached.
func (p *sglang) sort(s *Scheduler) {
	queue := s.waiting
	if i := slices.IndexFunc(queue, func(q *sequence) bool { return q.KV != engine.Compute }); i >= 0 {
		queue = queue[:i]
	}
	queue = queue[s.holding():]
	if !s.cfg.LongestPrefixFirst || !s.cfg.PrefixCaching || len(queue) < 2 || len(queue) > longestPrefixQueue {
		return
	}
	shared := make(map[kvcache.Hash]bool)
	for _, q := range queue {
		q.matched = s.cfg.Pool.Lookup(q.hashes)
		if q.matched*s.cfg.Pool.BlockTokens() > inBatchPrefix {
			continue
		}
		n := 0
		for n < len(q.hashes) && shared[q.hashes[n]] {
			n++
		}
		if n*s.cfg.Pool.BlockTokens() >= inBatchPrefix {
			q.matched = -1 // behind all
			continue
		}
		for _, h := range q.hashes {
			shared[h] = true
		}
	}
	slices.SortStableFunc(queue, func(a, b *sequence) int { return cmp.Compare(b.matched, a.matched) })
}

// reserve is the room for the output of q, of the prompts in the step, and for a share of
// that of the others, and one block more.
func (p *sglang) reserve(s *Scheduler, q *sequence) int {
	if len(s.running)+len(s.pending)+len(s.works) == 0 {
		return 0
	}
	tokens := outputLeft(q)
	for _, o := range s.works {
		if o.where == inWaiting {
			tokens += outputLeft(o)
		}
	}
	for _, list := range [...][]*sequence{s.running, s.pending} {
		for _, o := range list {
			tokens += p.ratio * outputLeft(o)
		}
	}
	return int(tokens)/s.cfg.Pool.BlockTokens() + 1
}

// outputLeft is how many tokens a sequence may still generate, as far as SGLang reckons with.
func outputLeft(q *sequence) float64 { return float64(min(q.MaxTokens-q.Output(), clipMaxNewTokens)) }

// decodes adds every running sequence, once those are retracted for whose next token the pool
// has no block.
func (p *sglang) decodes(s *Scheduler, step *engine.Step) {
	if p.short(s) {
		s.starved = true
		for p.short(s) {
			switch {
			case len(s.running) > 1:
				s.preempt(cheapest(s.running), len(s.waiting))
			case s.evictPrompt():
			default:
				s.preempt(s.running[0], len(s.waiting))
				return
			}
		}
		p.estimate(s)
	} else {
		p.relax()
	}
	for _, q := range s.running {
		if !s.adapters.serves(q) || len(step.Works) == s.cfg.MaxNumSeqs {
			continue
		}
		q.Table.Grow(s.cfg.Pool, q.Len()) // it fits
		s.work(step, q, q.Len()-q.Held)
	}
}

// relax has a step of decodes lower the ratio.
func (p *sglang) relax() { p.ratio = max(p.ratio-p.decay, p.least) }

func (p *sglang) decoded() {
	p.interval = max(p.interval-1, 0)
	p.relax()
}

// cheapest is the sequence that is retracted first: with the least output, of those the one
// with the longest prompt, of those the last.
func cheapest(running []*sequence) *sequence {
	least := running[0]
	for _, q := range running[1:] {
		if cmp.Or(cmp.Compare(q.Output(), least.Output()), cmp.Compare(len(least.Prompt), len(q.Prompt))) <= 0 {
			least = q
		}
	}
	return least
}

// short reports whether the pool lacks blocks for the next token of all that run.
func (*sglang) short(s *Scheduler) bool {
	need := 0
	for _, q := range s.running {
		need += s.missing(q, q.Len())
	}
	return need > s.cfg.Pool.Free()
}

// estimate sets the ratio by what the sequences that are left have generated so far.
func (p *sglang) estimate(s *Scheduler) {
	done, most := retractDecodeSteps*len(s.running), 1
	for _, q := range s.running {
		done += q.Output()
		most += q.MaxTokens
	}
	p.ratio = min(float64(done)/float64(most), 1)
}
