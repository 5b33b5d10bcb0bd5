package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kvferry/clock"
	"kvferry/engine"
	"kvferry/kvcache"
)

// A modelled executor waits out what a step costs on the modelled GPU, on an
// absolute schedule, and writes the KV that the step computes where somebody
// will fetch it. It is an engine.Executor.
//
// The bytes are written layer by layer over the step's modelled time, as a GPU
// would: all at its beginning they are a burst of up to 200 MB, in just the moment
// in which the KV of the step before is on its way, and cost that a third of its
// rate on two cores. If the machine is too slow for that the step ends late, and
// says so.
type modelled struct {
	clk   clock.Clock
	timer clock.Timer
	cost  *engine.CostModel
	slab  *kvcache.Slab
	vocab int
	toks  []kvcache.Token

	written atomic.Uint64 // pieces of KV so far: a layer's of a block, or hidden states

	mu       sync.Mutex
	contents map[uint64]*kvcache.Content // of sequences whose KV somebody will fetch
	hidden   map[uint64]bool             // and their hidden states
}

func newModelled(clk clock.Clock, costs engine.Costs, slab *kvcache.Slab, vocab int) (*modelled, error) {
	timer, err := clk.NewTimer()
	if err != nil {
		return nil, err
	}
	return &modelled{
		clk: clk, timer: timer, cost: engine.NewCostModel(costs), slab: slab, vocab: vocab,
		contents: make(map[uint64]*kvcache.Content), hidden: make(map[uint64]bool),
	}, nil
}

// materialise has the KV of a sequence written as it is computed.
func (m *modelled) materialise(id uint64, c *kvcache.Content, hidden bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contents[id] = c
	if hidden {
		m.hidden[id] = true
	}
}

func (m *modelled) forget(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contents, id)
	delete(m.hidden, id)
}

// A fill is what a step writes for one sequence: blocks [first, first+len(refs)).
type fill struct {
	content *kvcache.Content
	refs    []kvcache.Ref
	first   int
	hidden  bool
}

func (m *modelled) fills(step *engine.Step) (fs []fill) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.contents) == 0 {
		return nil
	}
	bt := m.slab.Geometry().BlockTokens
	for _, w := range step.Works {
		if !w.Prompt {
			continue
		}
		if c := m.contents[w.Seq.ID]; c != nil {
			first, last := w.From/bt, (w.From+w.N-1)/bt
			fs = append(fs, fill{c, w.Seq.Table.Refs()[first : last+1], first, m.hidden[w.Seq.ID] && m.slab.Geometry().HiddenSize > 0})
		}
	}
	return fs
}

// Run implements engine.Executor.
func (m *modelled) Run(ctx context.Context, step *engine.Step, layer func(int, time.Duration)) (time.Duration, []kvcache.Token, error) {
	took := m.cost.Run(step)
	end := step.At + took
	m.toks = m.toks[:0]
	for _, w := range step.Works {
		if w.Sample {
			m.toks = append(m.toks, w.Seq.NextToken(m.vocab))
		}
	}
	if fs := m.fills(step); len(fs) > 0 {
		layers := m.slab.Geometry().Layers
		for l := range layers {
			for _, f := range fs {
				for i, ref := range f.refs {
					f.content.Fill(m.slab.Layer(ref.ID, l), f.first+i, l)
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
					m.written.Add(1)
				}
			}
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

// linkLag is [engine.MaxLag] of the end of a transfer: less, as bytes that are late
// are a fact, and not a matter of when somebody looked.
const linkLag = 2 * time.Millisecond

func (m *modelled) wait(ctx context.Context, until time.Duration) error {
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
