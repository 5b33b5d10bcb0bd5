package calibrate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"kvferry/bench/client"
	"kvferry/bench/serve"
	"kvferry/bench/stats"
	"kvferry/engine"
	"kvferry/internal/config"
	"kvferry/load"
)

// A Comparison is a figure of a load, measured and predicted, in milliseconds.
type Comparison struct {
	Name                string
	Measured, Predicted float64
	Parts               []float64 // Off of each part of the load
}

// Off is how far the prediction is from what was measured, as a share of that.
func (c Comparison) Off() float64 { return c.Predicted/c.Measured - 1 }

// Worst is the furthest that the prediction of a part is from what was measured of it, as a share.
func (c Comparison) Worst() float64 {
	return slices.MaxFunc(c.Parts, func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
}

// A HeldBack is a load that nothing is fitted to: lengths and gaps drawn at random, within what the series sees.
// It is asked in parts, one behind each round of a series: what the machine does to the one it does to the
// other, and how far parts are from their predictions says what one of them is worth.
type HeldBack struct {
	Load  load.Spec // all of it
	Parts int
	Over  func() // is told of each request that was answered

	target serve.Target
	asked  [][]*client.Record // of each part that is over
}

// Settle has the rate be, if it is 0, half of what the server can do with 8 requests at once. That is asked in
// any case: what a server prepares for a length that it has not seen is no cost of the load.
func (h *HeldBack) Settle(ctx context.Context) error {
	l := h.Load
	l.Requests, l.Rate, l.InFlight, l.Seed = min(l.Requests, settling), math.Inf(1), 8, l.Seed+uint64(h.Parts)
	records, took, err := asked(ctx, h.target, l, func() {})
	if err != nil {
		return err
	}
	if _, err := figuresOf(records); err != nil {
		return fmt.Errorf("before the held-back load: %w", err)
	}
	if h.Load.Rate == 0 {
		h.Load.Rate = digits(0.5*float64(l.Requests)/took.Seconds(), 2)
	}
	return nil
}

// settling is how many requests say at most what a server can do.
const settling = 256

// part is the load of a part: as many requests as the others, or one more, drawn from a seed of its own.
func (h *HeldBack) part(i int) load.Spec {
	l := h.Load
	l.Requests, l.Seed = (l.Requests+h.Parts-1-i)/h.Parts, l.Seed+uint64(i)
	return l
}

// Ask asks the next part.
func (h *HeldBack) Ask(ctx context.Context) error {
	records, _, err := asked(ctx, h.target, h.part(len(h.asked)), h.Over)
	h.asked = append(h.asked, records)
	return err
}

// Compare sets the figures of all that was asked beside those of a profile in virtual time, with rpc as Model has it.
func (h *HeldBack) Compare(ctx context.Context, p *engine.Profile, rpc time.Duration) ([]Comparison, error) {
	var answers, predicted [][]*client.Record
	for i, records := range h.asked {
		model, _, err := asked(ctx, Model(p, rpc), h.part(i), func() {})
		if err != nil {
			return nil, err
		}
		answers, predicted = append(answers, records), append(predicted, model)
	}
	all, err := compare(slices.Concat(answers...), slices.Concat(predicted...))
	if err != nil {
		return nil, err
	}
	for i := range answers {
		part, err := compare(answers[i], predicted[i])
		if err != nil {
			return nil, err
		}
		for k, c := range part {
			all[k].Parts = append(all[k].Parts, c.Off())
		}
	}
	return all, nil
}

// compare sets the figures of records beside those that were predicted.
func compare(measured, predicted []*client.Record) (all []Comparison, err error) {
	if all, err = figuresOf(measured); err != nil {
		return nil, fmt.Errorf("held-back load: %w", err)
	}
	of, err := figuresOf(predicted)
	if err != nil {
		return nil, fmt.Errorf("held-back load, predicted: %w", err)
	}
	for i := range all {
		all[i].Predicted = of[i].Measured
	}
	return all, nil
}

// asked are the answers of a target to a load, and how long it took. over is told of each.
func asked(ctx context.Context, t serve.Target, l load.Spec, over func()) (records []*client.Record, took time.Duration, err error) {
	opened, err := l.Open()
	if err != nil {
		return nil, 0, err
	}
	took, err = t.Run(ctx, opened, func(r *client.Record) {
		records = append(records, r)
		over()
	})
	return records, took, err
}

// figuresOf are the figures of records, as measured.
func figuresOf(records []*client.Record) (all []Comparison, err error) {
	var measured client.Latencies
	for _, r := range records {
		if why := r.Failure(); why != "" {
			return nil, fmt.Errorf("request %d failed: %s", r.Index, why)
		}
		measured.Add(r)
	}
	for _, f := range []struct {
		name    string
		seconds []float64
	}{{"TTFT", measured.TTFT}, {"TPOT", measured.TPOT}, {"ITL", measured.ITL}, {"E2EL", measured.E2EL}} {
		sample := stats.NewSample(f.seconds)
		all = append(all, Comparison{Name: "mean " + f.name, Measured: sample.Mean()})
		for _, q := range []float64{50, 90, 99} {
			all = append(all, Comparison{Name: fmt.Sprintf("P%v %s", q, f.name), Measured: sample.Percentile(q)})
		}
	}
	return all, nil
}

// holdBack is the load of a check, of a server that serves a profile's model: Requests, InputLen, OutputLen, Seed
// and Rate are given, and 0 for Rate is left to Settle.
func holdBack(t serve.Target, vocab int, l load.Spec, parts int) (*HeldBack, error) {
	l.Kind, l.Burstiness, l.RangeRatio, l.Vocab = load.Random, 1, 0.75, vocab
	settled := l
	config.Default(&settled.Rate, 1)
	return &HeldBack{Load: l, Parts: min(parts, max(l.Requests, 1)), Over: func() {}, target: t}, settled.Validate()
}
