package engine

import (
	"math"
	"time"

	"kvferry/kvcache"
)

// A CostModel says how long a step takes on the modelled GPU, or on the GPUs that compute
// it together. It is pure, and remembers two things: how hot the GPU is, and whether it
// has computed several prompts together before.
//
// A step that computes prompts, of n tokens with p pairs of a prompt's new token and one
// before it, beside decodes that read c tokens of context, takes
//
//	prefill_step + max(hot(n x prefill_token + p x prefill_attention), prefill_floor + experts(n))
//	             + c x decode_kv_token + all-reduces(n)
//
// and cold_ms more if it is the first with several prompts. Of the two in max, which are done at the same time,
// one is arithmetic and the other reads weights: the roofline model (Williams et al. 2009).
// So it is in a decode step of b sequences, of a token each; decode_step has launching and reading:
//
//	max(decode_step + experts(b), prefill_step + b x decode_token)
//	             + b x decode_seq + c x decode_kv_token + all-reduces(b)
//
// where decode_token is mostly left out: a small batch reads so much more than it computes that only that counts.
// [Experts] and [TensorParallel] have their formulas.
//
// Prompt tokens slow down once the GPU has been busy for a while; on the A10 of
// the published runs from 0.186 to 0.260 ms a token, with a time constant of
// 93 ms, which reads as the droop of a 150 W card. Heat h in [0,1] relaxes to 1
// while a step runs and to 0 while none does, with the same constant tau. A token
// costs B(1+S·h), so base work W = n·B started at heat h0 takes T with
//
//	W = ∫0..T dt / (1 + S·h(t)),   h(t) = 1 - (1-h0)·exp(-t/tau)
//
// which has the closed form
//
//	T = a·W + tau·ln((a-b)/a + (b/a)·exp(-a·W/tau)),   a = 1+S, b = S·(1-h0).
//
// Fitted on the ten non-disaggregated and chunked cells of the published table.
type CostModel struct {
	c    Costs // of a GPU: divided by TensorParallel.Size
	pair float64
	kv   float64 // ms a token of context
	// Of all-reduces: ms a step, more a token, and more still each of the first small tokens.
	reduce, reduceToken, reduceSmall, small float64

	unread float64 // logarithm of the share of experts that a token leaves unread

	batched bool // several prompts have been computed together
	heat    float64
	at      time.Duration // when heat was that
	busy    float64       // ms that the GPU warmed up for last,
	kept    float64       // and how much of the cold that left: most decode steps are as long as the one before
}

// NewCostModel returns a model of a GPU that has been idle for long, and whose model's KV
// and hidden states are of this shape.
func NewCostModel(c Costs, g kvcache.Geometry) *CostModel {
	tp := c.TensorParallel
	size := float64(max(tp.Size, 1))
	m := &CostModel{kept: 1, pair: c.PrefillAttentionNS / 1e6 / size, kv: c.DecodeKVTokenNS / 1e6 * tp.share(g)}
	for _, divided := range []*float64{&c.PrefillTokenMS, &c.PrefillFloorMS, &c.DecodeStepMS, &c.DecodeTokenMS, &c.Experts.ReadMS} {
		*divided /= size
	}
	m.c = c
	if tp.Size > 1 {
		reduces := float64(2 * g.Layers)
		m.reduce = reduces * tp.AllReduceLatencyUS / 1e3
		sent := reduces * 2 * (size - 1) / size * float64(g.HiddenSize*2) / 1e6
		m.reduceToken = sent / tp.BusGBS
		if tp.SmallBusGBS > 0 {
			m.reduceSmall, m.small = sent/tp.SmallBusGBS-m.reduceToken, float64(tp.SmallBytes)/float64(g.HiddenSize*2)
		}
	}
	if e := c.Experts; e.Count > 0 {
		m.unread = math.Log1p(-float64(e.PerToken) / float64(e.Count))
	}
	return m
}

// Run accounts for step, launched at step.At, and returns how long it takes.
// Steps must not overlap and must come in order of time.
func (m *CostModel) Run(step *Step) time.Duration {
	m.cool(step.At)
	n := float64(step.Tokens)
	var d float64 // ms
	switch step.Kind {
	case Decode:
		d = m.decode(step, m.context(step.Works))
	case Prefill, Mixed:
		pairs, decodes := m.attention(step.Works)
		compute := m.hot(m.c.PrefillTokenMS*n + m.pair*pairs)
		d = m.c.PrefillStepMS + max(compute, m.c.PrefillFloorMS+m.experts(n)) + m.kv*decodes + m.reduces(n)
		if !m.batched && len(step.Works) > 1 {
			m.batched = true
			d += m.c.ColdMS
		}
	case Receive:
		// Its duration is the hand-off's, not the model's.
	}
	d += ms(step.Extra)
	m.warm(d)
	m.at = step.At + duration(d)
	return m.at - step.At
}

// Again is how long the next n steps take together, if each decodes the sequences of this one, with
// a token more of each. It accounts for none of them.
func (m *CostModel) Again(step *Step, n int) time.Duration {
	if m.kv == 0 { // all take the same
		return time.Duration(n) * duration(m.decode(step, 0))
	}
	took, tokens := time.Duration(0), m.context(step.Works)
	for range n {
		tokens += len(step.Works)
		took += duration(m.decode(step, tokens))
	}
	return took
}

// decode is how long a step of decodes takes that reads so many tokens of context.
func (m *CostModel) decode(step *Step, tokens int) float64 {
	n := float64(step.Tokens)
	experts := m.experts(n)
	d := m.c.DecodeStepMS + m.c.DecodeSeqMS*float64(len(step.Works)) + m.kv*float64(tokens) + experts + m.reduces(n)
	if m.c.DecodeTokenMS > 0 {
		d += max(0, m.c.PrefillStepMS+m.c.DecodeTokenMS*n-m.c.DecodeStepMS-experts)
	}
	return d
}

// context is the tokens whose KV decodes read. It is asked at every step of a simulation, of
// each of a large batch's sequences.
func (m *CostModel) context(decodes []Work) int {
	if m.kv == 0 {
		return 0
	}
	tokens := 0
	for i := range decodes {
		tokens += decodes[i].From + decodes[i].N
	}
	return tokens
}

// attention counts what the sequences of a step with prompts attend to: pairs of a prompt's
// new token and one before it, and tokens of context that decodes read beside.
func (m *CostModel) attention(works []Work) (pairs, context float64) {
	if m.pair == 0 && m.kv == 0 {
		return 0, 0
	}
	p, c := 0, 0
	for i := range works {
		if w := &works[i]; w.Prompt {
			p += w.N*w.From + w.N*(w.N-1)/2
		} else {
			c += w.From + w.N
		}
	}
	return float64(p), float64(c)
}

// experts is how long it takes to read those that n tokens are routed to.
func (m *CostModel) experts(n float64) float64 {
	e := &m.c.Experts
	if e.ReadMS == 0 || n == 0 {
		return 0
	}
	return e.ReadMS * (float64(e.Shared) - float64(e.Count)*math.Expm1(n*m.unread))
}

// reduces is how long the all-reduces of n tokens take.
func (m *CostModel) reduces(n float64) float64 {
	return m.reduce + m.reduceToken*n + m.reduceSmall*min(n, m.small)
}

// slowest bounds what Run returns for a step without prompts of up to seqs sequences, each
// of up to tokens tokens, and what each token of a step adds to that.
func (m *CostModel) slowest(seqs, tokens int) (step, token float64) {
	c := &m.c
	step = c.PrefillStepMS + c.PrefillFloorMS + c.ColdMS + c.DecodeStepMS + (c.DecodeSeqMS+c.DecodeTokenMS)*float64(seqs) +
		m.kv*float64(seqs)*float64(tokens) + c.Experts.ReadMS*float64(c.Experts.Count+c.Experts.Shared) + m.reduces(float64(seqs)) + m.reduceSmall*m.small
	return step, (c.PrefillTokenMS+m.pair*float64(tokens))*(1+c.HotSlowdown) + m.reduceToken
}

// hot is how long base work of w ms takes from the present heat.
func (m *CostModel) hot(w float64) float64 {
	if m.c.HotSlowdown == 0 || m.c.HeatMS == 0 {
		return w
	}
	a, tau := 1+m.c.HotSlowdown, m.c.HeatMS
	b := m.c.HotSlowdown * (1 - m.heat)
	return a*w + tau*math.Log((a-b)/a+(b/a)*math.Exp(-a*w/tau))
}

func (m *CostModel) cool(now time.Duration) {
	if idle := ms(now - m.at); idle > 0 && m.c.HeatMS > 0 {
		m.heat *= math.Exp(-idle / m.c.HeatMS)
	}
}

func (m *CostModel) warm(busy float64) {
	if m.c.HeatMS == 0 {
		return
	}
	if busy != m.busy {
		m.busy, m.kept = busy, math.Exp(-busy/m.c.HeatMS)
	}
	m.heat = 1 - (1-m.heat)*m.kept
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
