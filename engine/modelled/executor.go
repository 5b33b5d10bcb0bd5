// Package modelled is the GPU's stand-in: an [engine.Executor] that waits out what a step
// costs on the modelled GPU, and writes KV whose bytes follow from the tokens.
package modelled

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/clock"
	"kvferry/engine"
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

	mu       sync.Mutex
	contents map[uint64]*kvcache.Content // of sequences whose KV somebody will fetch
	hidden   map[uint64]bool             // and their hidden states
	answers  map[uint64]bool             // and the KV of what they generate
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
		contents: make(map[uint64]*kvcache.Content), hidden: make(map[uint64]bool), answers: make(map[uint64]bool),
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
	c := kvcache.NewContent(m.slab.Geometry(), adapter, salt, prompt)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents[id] = c
	if use&engine.Movable != 0 {
		m.answers[id] = true
	}
	if use&engine.FetchedHidden != 0 && m.slab.Geometry().HiddenSize > 0 {
		m.hidden[id] = true
	}
}

// Load implements engine.Executor: nothing is kept in host memory, since the tokens say what the
// blocks must contain.
func (m *Executor) Load(id uint64, refs []kvcache.Ref, first int) {
	m.mu.Lock()
	c, hidden := m.contents[id], m.hidden[id]
	m.mu.Unlock()
	if c == nil {
		return
	}
	for i, ref := range refs {
		for l := range m.slab.Geometry().Layers {
			c.Fill(m.slab.Layer(ref.ID, l), first+i, l)
			m.slab.Seal(ref, l, m.slab.Geometry().BlockTokens)
			m.written.Add(1)
		}
		if hidden {
			c.FillHidden(m.slab.Hidden(ref.ID), first+i)
			m.slab.Seal(ref, m.slab.Geometry().Layers, m.slab.Geometry().BlockTokens)
			m.written.Add(1)
		}
	}
}

// Forget implements engine.Executor.
func (m *Executor) Forget(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contents, id)
	delete(m.hidden, id)
	delete(m.answers, id)
}

// Progress implements engine.Executor, in pieces of KV.
func (m *Executor) Progress() uint64 { return m.written.Load() }

// Close implements engine.Executor.
func (m *Executor) Close() error { return m.timer.Close() }

// A fill describes the KV that a step writes for one sequence: tokens [from, to), which lie in blocks
// [first, first+len(refs)).
type fill struct {
	content  *kvcache.Content
	refs     []kvcache.Ref
	first    int
	from, to int
	hidden   bool
}

// write writes a layer of the i-th block, and no row of a token that an earlier step has computed:
// what became of that stays as it is.
func (f *fill) write(slab *kvcache.Slab, i, layer int) {
	bt, dst := slab.Geometry().BlockTokens, slab.Layer(f.refs[i].ID, layer)
	begin, end := (f.first+i)*bt, min((f.first+i+1)*bt, f.content.Tokens())
	if begin >= f.from && end <= f.to {
		f.content.Fill(dst, f.first+i, layer)
		return
	}
	for token := max(begin, f.from); token < min(end, f.to); token++ {
		f.content.FillToken(dst, token, layer)
	}
}

// rows returns how many rows of the i-th block hold KV after the step.
func (f *fill) rows(i, blockTokens int) int {
	return min(min(f.to, f.content.Tokens())-(f.first+i)*blockTokens, blockTokens)
}

// decoded writes the tokens of a step that decodes sequences whose answers are read: a row a
// layer each, at once.
func (m *Executor) decoded(step *engine.Step) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) == 0 {
		return
	}
	g := m.slab.Geometry()
	for _, w := range step.Works {
		if w.Prompt || !m.answers[w.Seq.ID] {
			continue
		}
		for token := w.From; token < w.From+w.N; token++ {
			ref := w.Seq.Table.Refs()[token/g.BlockTokens]
			for l := range g.Layers {
				m.contents[w.Seq.ID].FillToken(m.slab.Layer(ref.ID, l), token, l)
				m.slab.Seal(ref, l, token%g.BlockTokens+1)
			}
			m.written.Add(1)
		}
	}
}

func (m *Executor) fills(step *engine.Step) (fs []fill) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.contents) == 0 {
		return nil
	}
	bt := m.slab.Geometry().BlockTokens
	for _, w := range step.Works {
		c := m.contents[w.Seq.ID]
		if c != nil && m.answers[w.Seq.ID] {
			c.Append(w.Seq.Tokens(c.Tokens())...)
		}
		if c != nil && w.Prompt {
			first, last := w.From/bt, (w.From+w.N-1)/bt
			fs = append(fs, fill{c, w.Seq.Table.Refs()[first : last+1], first, w.From, w.From + w.N, m.hidden[w.Seq.ID]})
		}
	}
	return fs
}

// Run implements engine.Executor.
func (m *Executor) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration)) (time.Duration, []kvcache.Token, error) {
	took := m.cost.Run(step)
	end := step.At + took
	fs := m.fills(step)
	m.decoded(step)
	if len(fs) > 0 {
		layers, bt := m.slab.Geometry().Layers, m.slab.Geometry().BlockTokens
		for l := range layers {
			for _, f := range fs {
				for i, ref := range f.refs {
					f.write(m.slab, i, l)
					m.slab.Seal(ref, l, f.rows(i, bt))
					m.written.Add(1)
				}
			}
			at := step.At + took*time.Duration(l+1)/time.Duration(layers)
			if err := m.wait(ctx, at); err != nil {
				return 0, nil, err
			}
			if layer != nil {
				layer(l, at)
			}
		}
		for _, f := range fs {
			if f.hidden {
				for i, ref := range f.refs {
					f.content.FillHidden(m.slab.Hidden(ref.ID), f.first+i)
					m.slab.Seal(ref, layers, f.rows(i, bt))
					m.written.Add(1)
				}
			}
		}
	}
	m.toks = m.toks[:0]
	for _, w := range step.Works {
		if w.Sample {
			m.toks = append(m.toks, m.draw(w.Seq, w.From+w.N))
		}
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
