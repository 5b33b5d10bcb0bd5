package bench

import (
	"context"
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"kvferry/bench/calibrate"
	"kvferry/bench/stats"
	"kvferry/engine"
	"kvferry/load"
)

// searchTo has TestFit search; go test ./bench -run '^TestFit$' -v -fit profile.json
var searchTo = flag.String("fit", "", "file for the profile that TestFit finds")

// Attention's costs on the A10 are no parameters of the fit. Arithmetic: 56 % of its peak
// of 125 TFLOPS, which is what the fitted time of a token comes to (13.05 GFLOP in
// 0.186 ms), for 28 layers of 28 heads of 128. Memory: 365 GB/s, which is what the
// fitted decode step comes to (4.5 GB of weights in 12.33 ms), for a token's KV.
const (
	attentionNS = 4 * 28 * 28 * 128 / (0.56 * 125e12) * 1e9
	contextNS   = 57344 / 365e9 * 1e9
)

// publishedLatencies are the Latencies of some settings. Each may be off by its limit.
func publishedLatencies(ctx context.Context, prof *engine.Profile, settings []Setting) ([]calibrate.Figure, error) {
	figures, err := Latencies(ctx, prof, settings)
	if err != nil {
		return nil, err
	}
	next := figures
	for _, w := range load.Workloads() {
		for _, s := range settings {
			limit := limits(w, s)
			if limit.MedianTPOTMS == 0 { // no test asks for these
				limit.MedianTPOTMS, limit.MeanITLMS, limit.MedianITLMS = limit.MeanTPOTMS, limit.MeanTPOTMS, limit.MeanTPOTMS
			}
			for i, l := range latencyFigures(&limit) {
				next[i].Scale = *l.Value
			}
			next = next[9:]
		}
	}
	return figures, nil
}

// split are the published settings, without and with disaggregation.
func split(tb testing.TB) (colocated, disaggregated []Setting) {
	tb.Helper()
	colocated, err := ParseSettings("nondisagg,chunked")
	if err != nil {
		tb.Fatal(err)
	}
	disaggregated, err = ParseSettings("rdma,rdma2,tcp")
	if err != nil {
		tb.Fatal(err)
	}
	return colocated, disaggregated
}

// shaken are the figures of a profile, and of it with the fields of parameters moved by up
// to 0.1 % and the hop by up to 0.1 ms: who goes first, a copy or a prefill, is decided by
// fractions of a millisecond, and what hangs on one decision is not to be fitted to.
func shaken(parameters []calibrate.Parameter, draws int, settings []Setting) calibrate.Figures {
	return func(ctx context.Context, prof *engine.Profile) ([]calibrate.Figure, error) {
		all, err := publishedLatencies(ctx, prof, settings)
		rng := rand.New(rand.NewPCG(17, 10))
		for range draws {
			if err != nil {
				return nil, err
			}
			values := map[string]float64{}
			for _, p := range parameters {
				v, err := calibrate.ReadField(prof, p.Field)
				if err != nil {
					return nil, err
				}
				values[p.Field] = v * (1 + 1e-3*(2*rng.Float64()-1))
			}
			values["disagg.v0.hop_ms"] += 0.1 * (2*rng.Float64() - 1)
			var moved *engine.Profile
			if moved, err = calibrate.WithFields(prof, values); err != nil {
				return nil, err
			}
			var more []calibrate.Figure
			more, err = publishedLatencies(ctx, moved, settings)
			all = append(all, more...)
		}
		return all, err
	}
}

// TestAttentionProfile: with attention in, the published figures come out no worse than
// without, and attention costs what it should.
func TestAttentionProfile(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	colocated, disaggregated := split(t)
	var errors [2][3]calibrate.Errors
	for i, name := range []string{engine.DefaultProfile, engine.AttentionProfile} {
		prof, err := engine.LoadProfile(name)
		if err != nil {
			t.Fatal(err)
		}
		for k, settings := range [][]Setting{slices.Concat(colocated, disaggregated), colocated, disaggregated} {
			figures, err := publishedLatencies(t.Context(), prof, settings)
			if err != nil {
				t.Fatal(err)
			}
			errors[i][k] = calibrate.ErrorsOf(figures)
			t.Logf("%s: %v", name, errors[i][k])
		}
		if i > 0 && (math.Abs(prof.Costs.PrefillAttentionNS/attentionNS-1) > 0.01 || math.Abs(prof.Costs.DecodeKVTokenNS/contextNS-1) > 0.01) {
			t.Errorf("attention costs %v and %v ns, want %v and %v", prof.Costs.PrefillAttentionNS, prof.Costs.DecodeKVTokenNS, attentionNS, contextNS)
		}
	}
	for k, without := range errors[0] {
		if with := errors[1][k]; with.Median > without.Median || with.P90 > without.P90 {
			t.Errorf("with attention %v; without it %v", with, without)
		}
	}
}

// TestFit: the fit of the A10 with attention, from the shipped profile: the engine to the
// ten cells without disaggregation, then, with that, the published hand-off to the others.
func TestFit(t *testing.T) {
	if *searchTo == "" {
		t.Skip("three minutes on a core; -fit FILE runs it, and writes the profile there")
	}
	start, err := engine.LoadProfile(engine.DefaultProfile)
	if err != nil {
		t.Fatal(err)
	}
	start.Name = engine.AttentionProfile
	prof, err := calibrate.WithFields(start, map[string]float64{
		"costs.prefill_attention_ns": stats.Round(attentionNS, 2), "costs.decode_kv_token_ns": stats.Round(contextNS, 0),
		"costs.decode_seq_ms": 0.01, "costs.prefill_token_ms": 0.183, // what they were, less what attention was of them
	})
	if err != nil {
		t.Fatal(err)
	}
	colocated, disaggregated := split(t)
	for _, stage := range []struct {
		settings    []Setting
		evaluations int
		draws       int
		parameters  []calibrate.Parameter
	}{
		{colocated, 1000, 0, []calibrate.Parameter{
			{Field: "costs.request_ms", Low: 2, High: 6},
			{Field: "costs.prefill_step_ms", Low: 0, High: 4},
			{Field: "costs.prefill_token_ms", Low: 0.16, High: 0.21},
			{Field: "costs.hot_slowdown", Low: 0.2, High: 0.6},
			{Field: "costs.heat_ms", Low: 30, High: 300},
			{Field: "costs.decode_step_ms", Low: 11.5, High: 13},
			{Field: "costs.decode_seq_ms", Low: 0, High: 0.1},
			{Field: "costs.output_delay_ms", Low: 10, High: 25},
		}},
		{disaggregated, 500, 1, []calibrate.Parameter{
			{Field: "disagg.decode_step_ms", Low: 11, High: 12},
			{Field: "disagg.v0.hop_ms", Low: 5, High: 30},
			{Field: "disagg.v0.receive_ms", Low: 0, High: 6},
			{Field: "disagg.v0.producer_ms_per_mb", Low: 0.1, High: 0.5},
			{Field: "disagg.v0.consumer_ms_per_mb", Low: 0.1, High: 0.5},
			{Field: "disagg.v0.extract_ms_per_mb", Low: 0, High: 0.3},
			{Field: "disagg.v0.launch_gap_ms", Low: 0, High: 15},
			{Field: "links.tcp.ms_per_mb", Low: 0.4, High: 1.2},
			{Field: "links.rdma.ms_per_mb", Low: 0.1, High: 0.6},
			{Field: "links.rdma2.ms_per_mb", Low: 0.05, High: 0.4},
		}},
	} {
		r, err := calibrate.Search{
			Profile: prof, Parameters: stage.parameters, Evaluations: stage.evaluations, Seed: 17,
			Figures: shaken(stage.parameters, stage.draws, stage.settings),
		}.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := save(*searchTo, r.Profile); err != nil {
			t.Fatal(err)
		}
		t.Logf("loss %.4f after %d profiles; %v", r.Loss, r.Evaluations, calibrate.ErrorsOf(r.Figures))
		prof = r.Profile
	}
}

// save writes a profile to a file.
func save(name string, p *engine.Profile) error {
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(text, '\n'), 0o600)
}
