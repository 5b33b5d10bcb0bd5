package engine

import (
	"math"
	"time"
)

// A CostModel says how long a step takes on the modelled GPU. It is pure, and
// remembers one thing: how hot the GPU is.
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
	c    Costs
	heat float64
	at   time.Duration // when heat was that
}

// NewCostModel returns a model of a GPU that has been idle for long.
func NewCostModel(c Costs) *CostModel { return &CostModel{c: c} }

// Run accounts for step, launched at step.At, and returns how long it takes.
// Steps must not overlap and must come in order of time.
func (m *CostModel) Run(step *Step) time.Duration {
	m.cool(step.At)
	var d float64 // ms
	switch step.Kind {
	case Decode:
		d = m.c.DecodeStepMS + m.c.DecodeSeqMS*float64(len(step.Works))
	case Prefill, Mixed:
		d = m.c.PrefillStepMS + m.hot(m.c.PrefillTokenMS*float64(step.Tokens))
	case Receive:
		// Its duration is the hand-off's, not the model's.
	}
	d += ms(step.Extra)
	m.warm(d)
	m.at = step.At + duration(d)
	return m.at - step.At
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
	if m.c.HeatMS > 0 {
		m.heat = 1 - (1-m.heat)*math.Exp(-busy/m.c.HeatMS)
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
