package modelled

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"kvferry/engine"
	"kvferry/engine/batching"
	"kvferry/internal/clock"
	"kvferry/kvcache"
)

// A lateClock stands still until somebody waits for a time, and wakes who waits for due
// late.
type lateClock struct {
	now, due, late time.Duration
}

func (c *lateClock) Now() time.Duration { return c.now }

func (c *lateClock) NewTimer() (clock.Timer, error) {
	return &lateTimer{c, make(chan struct{}, 1)}, nil
}

type lateTimer struct {
	clock *lateClock
	fired chan struct{}
}

func (t *lateTimer) C() <-chan struct{} { return t.fired }
func (t *lateTimer) Stop()              {}
func (t *lateTimer) Close() error       { return nil }

func (t *lateTimer) Set(at time.Duration) {
	t.clock.now = at
	if at == t.clock.due {
		t.clock.now += t.clock.late
	}
	t.fired <- struct{}{}
}

// TestLateStep: a step that was noticed a little late ended when it should have, one that
// something else held up when it did. Its layers are told by the schedule.
func TestLateStep(t *testing.T) {
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.HiddenSize = 4, 2, 256
	p.Costs = engine.Costs{PrefillStepMS: 8, DecodeStepMS: 8}
	slab, err := kvcache.NewSlab(p.KVGeometry, make([]byte, 4*p.KVGeometry.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	const at, took = time.Second, 8 * time.Millisecond
	for _, c := range []struct{ late, end time.Duration }{
		{0, at + took},
		{engine.MaxLag, at + took},
		{engine.MaxLag + 1, at + took + engine.MaxLag + 1},
		{time.Minute, at + took + time.Minute},
	} {
		for _, kind := range []engine.Kind{engine.Decode, engine.Prefill} {
			clk := &lateClock{now: at, due: at + took, late: c.late}
			m, err := New(clk, p.Costs, slab, p.Vocab)
			if err != nil {
				t.Fatal(err)
			}
			prompt := make([]kvcache.Token, 16)
			pool := kvcache.NewPool(4, 16, false)
			sched, err := batching.NewScheduler(batching.ConfigOf(p, false, pool))
			if err != nil {
				t.Fatal(err)
			}
			step := sched.Step(at, 0, engine.Add{Request: engine.Request{ID: 1, Prompt: prompt, MaxTokens: 1}}).Launch
			step.At, step.Kind = at, kind
			if kind == engine.Prefill {
				m.Admit(1, "", "", prompt, engine.Fetched|engine.FetchedHidden)
			}
			var layers []time.Duration
			end, tokens, err := m.Run(t.Context(), step, func(l int, at time.Duration) {
				if l != len(layers) {
					t.Errorf("layer %d after %d", l, len(layers)-1)
				}
				layers = append(layers, at)
			}, nil)
			if err != nil || end != c.end || len(tokens) != 1 {
				t.Errorf("%v step, woken %v late: ended at %v with %d tokens, %v; want %v", kind, c.late, end, len(tokens), err, c.end)
			}
			var want []time.Duration
			if kind == engine.Prefill {
				want = []time.Duration{at + took/4, at + took/2, at + 3*took/4, at + took}
			}
			if !slices.Equal(layers, want) {
				t.Errorf("%v step, woken %v late: layers at %v, want %v", kind, c.late, layers, want)
			}
		}
	}
}

// TestStoppedStep: a step does not outlive the node.
func TestStoppedStep(t *testing.T) {
	clk := clock.Std()
	g := kvcache.Geometry{Layers: 1, KVHeads: 1, HeadDim: 1, ElemBytes: 1, BlockTokens: 1}
	slab, err := kvcache.NewSlab(g, make([]byte, g.SlotBytes()))
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(clk, engine.Costs{DecodeStepMS: 1e9}, slab, 10)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	reason := errors.New("the node has gone")
	stop(reason)
	if _, _, err := m.Run(ctx, &engine.Step{Kind: engine.Decode, At: clk.Now()}, nil, nil); !errors.Is(err, reason) {
		t.Errorf("%v, want %v", err, reason)
	}
}

// TestUse: KV is written for those who will look at it, and no longer than they are there.
func TestUse(t *testing.T) {
	p, err := engine.LoadProfile("zero")
	if err != nil {
		t.Fatal(err)
	}
	p.KVGeometry.Layers, p.KVGeometry.KVHeads, p.KVGeometry.HiddenSize = 4, 2, 256
	prompt := []kvcache.Token{1, 2, 3}
	for _, c := range []struct {
		use            engine.Use
		forgotten      bool
		blocks, hidden bool
	}{
		{use: 0},
		{use: engine.Rechecked, blocks: true},
		{use: engine.Fetched, blocks: true},
		{use: engine.Fetched | engine.FetchedHidden, blocks: true, hidden: true},
		{use: engine.Fetched | engine.FetchedHidden, forgotten: true},
	} {
		slab, err := kvcache.NewSlab(p.KVGeometry, make([]byte, p.KVGeometry.SlotBytes()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := New(clock.Std(), p.Costs, slab, p.Vocab)
		if err != nil {
			t.Fatal(err)
		}
		m.Admit(7, "", "", prompt, c.use)
		if c.forgotten {
			m.Forget(7)
		}
		q := &engine.Sequence{Request: engine.Request{ID: 7, Prompt: prompt}}
		if !q.Table.Grow(kvcache.NewPool(1, p.KVGeometry.BlockTokens, false), len(prompt)) {
			t.Fatal("no block")
		}
		before := m.Progress()
		if _, _, err := m.Run(t.Context(), &engine.Step{Kind: engine.Prefill, Works: []engine.Work{{Seq: q, N: 3, Prompt: true, Sample: true}}}, nil, nil); err != nil {
			t.Fatal(err)
		}
		want := kvcache.NewContent(p.KVGeometry, "", "", prompt)
		for l := range p.KVGeometry.Layers {
			if written := holds(want, slab.Layer(0, l), 0, l); written != c.blocks {
				t.Errorf("%+v: layer %d is written: %t", c, l, written)
			}
		}
		states := bytes.Clone(slab.Hidden(0))
		want.FillHidden(states, 0)
		if written := bytes.Equal(states, slab.Hidden(0)); written != c.hidden {
			t.Errorf("%+v: hidden states are written: %t", c, written)
		}
		if (m.Progress() > before) != c.blocks {
			t.Errorf("%+v: %d pieces, then %d", c, before, m.Progress())
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// holds reports whether src equals the bytes that c requires of a layer of a block.
func holds(c *kvcache.Content, src []byte, block, layer int) bool {
	want := bytes.Clone(src)
	c.Fill(want, block, layer)
	return bytes.Equal(src, want)
}
