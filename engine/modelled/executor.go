// Package modelled is the GPU's stand-in: an [engine.Executor] that waits out what a step
// costs on the modelled GPU, and writes KV whose bytes follow from the tokens.
package modelled

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/engine"
	"kvferry/internal/clock"
	"kvferry/kvcache"
)

// An Executor waits out what a step costs on the modelled GPU, on an absolute schedule, and
// writes the KV that the step computes where somebody will fetch it; see kvcache.Content.
//
// The bytes are written layer by layer over the step's modelled time, as a GPU
// would: all at its beginning they are a burst of up to 200 MB, in just the moment
// in which the KV of the step before is on its way, and cost that a third of its
// rate on two cores. If the machine is too slow for that the step ends late, and
// says so.
type Executor struct {
	clk   clock.Clock
	timer clock.Timer
	cost  *engine.CostModel
	slab  *kvcache.Slab
	vocab int
	toks  []kvcache.Token

	// TokensFromKV draws each token from all KV of its sequence; see [Answer]. All KV is then
	// written, whoever reads it. Set it before the first Admit.
	TokensFromKV bool

	written atomic.Uint64 // pieces of KV so far: a layer's of a block, or hidden states

	mu        sync.Mutex
	sequences map[uint64]sequence // whose KV somebody will fetch
}

type sequence struct {
	*kvcache.Content      // nil if nobody will fetch its KV
	hidden           bool // its hidden states are fetched too
	answer           bool // and the KV of what it generates
}

// New returns an executor of a GPU with these costs, in milliseconds, whose KV lies in
// slab, and whose model has vocab tokens. The caller owns the slab, and closes it after the
// executor.
func New(clk clock.Clock, costs engine.Costs, slab *kvcache.Slab, vocab int) (*Executor, error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, err
	}
	return &Executor{
		clk: clk, timer: timer, cost: engine.NewCostModel(costs, slab.Geometry()), slab: slab, vocab: vocab,
		sequences: make(map[uint64]sequence),
	}, nil
}

// Admit implements engine.Executor. The KV of a sequence is written as it is computed if
// somebody will look at it: writing what nobody reads would only heat the machine.
func (m *Executor) Admit(id uint64, adapter, salt string, prompt []kvcache.Token, use engine.Use) {
	if m.TokensFromKV {
		use |= engine.Movable
	}
	if use&(engine.Fetched|engine.Rechecked|engine.Movable) == 0 {
		return
	}
	g := m.slab.Geometry()
	q := sequence{kvcache.NewContent(g, adapter, salt, prompt), use&engine.FetchedHidden != 0 && g.HiddenSize > 0, use&engine.Movable != 0}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sequences[id] = q
}

// Load implements engine.Executor: nothing is kept in host memory, since the tokens say what the
// blocks must contain.
func (m *Executor) Load(id uint64, refs []kvcache.Ref, first int) {
	m.mu.Lock()
	q := m.sequences[id]
	m.mu.Unlock()
	if q.Content == nil {
		return
	}
	g := m.slab.Geometry()
	f := fill{q, refs, first, first * g.BlockTokens, (first + len(refs)) * g.BlockTokens}
	m.write(&f, 0, g.Layers)
	if q.hidden {
		m.write(&f, g.Layers, g.Layers+1)
	}
}

// Forget implements engine.Executor.
func (m *Executor) Forget(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sequences, id)
}

// Progress implements engine.Executor, in pieces of KV.
func (m *Executor) Progress() uint64 { return m.written.Load() }

// Close implements engine.Executor.
func (m *Executor) Close() error { return m.timer.Close() }

// A fill describes the KV that a step writes for one sequence: tokens [from, to), which lie in blocks
// [first, first+len(refs)).
type fill struct {
	sequence
	refs     []kvcache.Ref
	first    int
	from, to int
}

// write writes layers [begin, end) of a fill and seals them. The layer after the last one is the hidden states. Of K and
// V it writes no row of a token that an earlier step has computed: what became of that stays as it is.
func (m *Executor) write(f *fill, begin, end int) {
	g := m.slab.Geometry()
	for layer := begin; layer < end; layer++ {
		for i, ref := range f.refs {
			start := (f.first + i) * g.BlockTokens
			stop := min(start+g.BlockTokens, f.Tokens())
			switch {
			case layer == g.Layers:
				f.FillHidden(m.slab.Hidden(ref.ID), f.first+i)
			case start >= f.from && stop <= f.to:
				f.Fill(m.slab.Layer(ref.ID, layer), f.first+i, layer)
			default:
				for token := max(start, f.from); token < min(stop, f.to); token++ {
					f.FillToken(m.slab.Layer(ref.ID, layer), token, layer)
				}
			}
			m.slab.Seal(ref, layer, min(stop, f.to)-start)
			m.written.Add(1)
		}
	}
}

// fills returns what a step writes of its prompts, and of the answers of other sequences that it decodes.
func (m *Executor) fills(step *engine.Step) (prompts, answers []fill) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sequences) == 0 {
		return nil, nil
	}
	bt := m.slab.Geometry().BlockTokens
	for _, w := range step.Works {
		q := m.sequences[w.Seq.ID]
		if q.answer {
			q.Append(w.Seq.Tokens(q.Tokens())...)
		}
		first, last := w.From/bt, (w.From+w.N-1)/bt
		switch {
		case q.Content == nil:
		case w.Prompt:
			prompts = append(prompts, fill{q, w.Seq.Table.Refs()[first : last+1], first, w.From, w.From + w.N})
		case q.answer:
			answers = append(answers, fill{q, w.Seq.Table.Refs()[first : last+1], first, w.From, w.From + w.N})
		}
	}
	return prompts, answers
}

// Run implements engine.Executor.
func (m *Executor) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration), read func()) (time.Duration, []kvcache.Token, error) {
	took := m.cost.Run(step)
	end := step.At + took
	prompts, answers := m.fills(step)
	layers := m.slab.Geometry().Layers
	for i := range answers { // a row a layer each, at once
		m.write(&answers[i], 0, layers)
	}
	for l := 0; l < layers && len(prompts) > 0; l++ {
		for i := range prompts {
			m.write(&prompts[i], l, l+1)
		}
		at := step.At + took*time.Duration(l+1)/time.Duration(layers)
		if err := m.wait(ctx, at); err != nil {
			return 0, nil, err
		}
		if layer != nil {
			layer(l, at)
		}
	}
	for i := range prompts {
		if prompts[i].hidden {
			m.write(&prompts[i], layers, layers+1)
		}
	}
	m.toks = m.toks[:0]
	for _, w := range step.Works {
		if w.Sample {
			m.toks = append(m.toks, m.draw(w.Seq, w.From+w.N))
		}
	}
	if read != nil {
		read()
	}
	if err := m.wait(ctx, end); err != nil {
		return 0, nil, err
	}
	if now := m.clk.Now(); now-end > engine.MaxLag {
		end = now
	}
	return end, m.toks, nil
}

func (m *Executor) wait(ctx context.Context, until time.Duration) error {
	for m.clk.Now() < until {
		m.timer.Set(until)
		select {
		case <-m.timer.C():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
