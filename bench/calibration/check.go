package calibration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/figure"
	"kvferry/bench/fit"
	"kvferry/bench/serve"
	"kvferry/engine"
	"kvferry/load"
	"kvferry/sim"
)

// A Comparison is a figure of a load, measured and predicted, in milliseconds.
type Comparison struct {
	Name                string
	Measured, Predicted float64
}

// Off is how far the prediction is from what was measured, as a share of that.
func (c Comparison) Off() float64 { return c.Predicted/c.Measured - 1 }

// Check asks a server a load that nothing was fitted to, and sets its figures beside those of the
// profile in virtual time, with rpc as Model has it. over is told of each request that the server has
// answered, and measured that it has answered all.
func Check(ctx context.Context, t serve.Target, p *engine.Profile, rpc time.Duration, l load.Spec, over, measured func()) ([]Comparison, error) {
	all, err := figures(ctx, t, l, over)
	measured()
	if err != nil {
		return nil, err
	}
	predicted, err := figures(ctx, Model(p, rpc), l, func() {})
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].Predicted = predicted[i].Measured
	}
	return all, nil
}

// figures are those of a load, as a target answers it.
func figures(ctx context.Context, t serve.Target, l load.Spec, over func()) ([]Comparison, error) {
	asked, err := l.Open()
	if err != nil {
		return nil, err
	}
	var records []*client.Record
	if _, err = t.Run(ctx, asked, func(r *client.Record) {
		records = append(records, r)
		over()
	}); err != nil {
		return nil, err
	}
	all, err := figuresOf(records)
	if err != nil {
		return nil, fmt.Errorf("held-back load: %w", err)
	}
	return all, nil
}

// figuresOf are the figures of records, as measured.
func figuresOf(records []*client.Record) (all []Comparison, err error) {
	var ttft, tpot, itl, e2e []float64
	for _, r := range records {
		if why := r.Failure(); why != "" {
			return nil, fmt.Errorf("request %d failed: %s", r.Index, why)
		}
		ttft, e2e = append(ttft, 1e3*r.TTFT()), append(e2e, 1e3*r.E2EL())
		if v, ok := r.TPOT(); ok {
			tpot = append(tpot, 1e3*v)
		}
		for v := range r.ITL() {
			itl = append(itl, 1e3*v)
		}
	}
	for _, f := range []struct {
		name   string
		values []float64
	}{{"TTFT", ttft}, {"TPOT", tpot}, {"ITL", itl}, {"E2EL", e2e}} {
		slices.Sort(f.values)
		all = append(all, Comparison{Name: "mean " + f.name, Measured: mean(f.values)})
		for _, q := range []float64{50, 90, 99} {
			all = append(all, Comparison{Name: fmt.Sprintf("P%v %s", q, f.name), Measured: figure.Percentile(f.values, q)})
		}
	}
	return all, nil
}

// HeldBack is the load of a check: lengths and gaps drawn at random, within what the series saw.
// A rate of 0 becomes half of what the profile can do with 8 requests at once.
func HeldBack(ctx context.Context, p *engine.Profile, l load.Spec) (load.Spec, error) {
	l.Kind, l.Burstiness, l.RangeRatio, l.Vocab = load.Random, 1, 0.75, p.Vocab
	if l.Rate > 0 {
		return l, l.Validate()
	}
	l.Rate, l.InFlight = math.Inf(1), 8
	asked, err := l.Open()
	if err != nil {
		return l, err
	}
	took, err := Model(p, sim.DefaultRPC).Run(ctx, asked, func(*client.Record) {})
	l.Rate, l.InFlight = fit.Digits(0.5*float64(l.Requests)/took.Seconds(), 2), 0
	return l, err
}
