package sglang

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"kvferry/bench/fit"
	"kvferry/engine"
)

// fitted says which profile TestFit searches, and to which file: go test ./bench/sglang -run '^TestFit$' -v -profile NAME -fit FILE
var (
	fitted  = flag.String("fit", "", "file for the profile that TestFit finds")
	started = flag.String("profile", "", "the profile that it starts from: a shipped one, or a file")
)

// searched are the fields that TestFit may change, with bounds: physical ones. What is known of a model (how
// many experts there are, of how many bytes) is not searched.
var searched = []fit.Parameter{
	{Field: "costs.request_ms", Low: 0.2, High: 30},
	{Field: "costs.front_end_in_ms", Low: 0.1, High: 6},
	{Field: "costs.front_end_out_ms", Low: 0.002, High: 0.2},
	{Field: "costs.prefill_token_ms", Low: 0.0002, High: 0.2},
	{Field: "costs.prefill_step_ms", Low: 0.5, High: 40},
	{Field: "costs.cold_ms", Low: 1, High: 5000},
	{Field: "costs.decode_step_ms", Low: 0.35, High: 60},
	{Field: "costs.decode_seq_ms", Low: 0.001, High: 1},
	{Field: "costs.decode_kv_token_ns", Low: 1, High: 200},
}

// figuresOf computes the judged figures of published runs with a profile.
func figuresOf(ctx context.Context, published []Published, prof *engine.Profile) ([]fit.Figure, error) {
	var figures []fit.Figure
	for _, p := range published {
		row, err := Compute(ctx, &p, prof)
		if err != nil {
			return nil, err
		}
		for _, key := range Judged(p.Figures) {
			figures = append(figures, fit.Figure{Name: p.Name() + " " + key, Got: row.Metrics[key], Want: p.Figures[key], Scale: 0.05})
		}
	}
	return figures, nil
}

// of are the published runs of a profile.
func of(profile string) (all []Published) {
	for _, p := range Runs() {
		if p.Profile == profile {
			all = append(all, p)
		}
	}
	return all
}

// TestFit searches the profile of a server, if it is asked to.
func TestFit(t *testing.T) {
	if *fitted == "" {
		t.Skip("nothing is searched: give -profile and -fit")
	}
	prof, err := engine.LoadProfile(*started)
	if err != nil {
		t.Fatal(err)
	}
	published := of(prof.Name)
	result, err := fit.Search{
		Profile: prof, Parameters: searched, Evaluations: 1500, Seed: 1,
		Figures: func(ctx context.Context, p *engine.Profile) ([]fit.Figure, error) {
			return figuresOf(ctx, published, p)
		},
		OnProgress: func(n int, loss float64) { t.Logf("%d: %.4f", n, loss) },
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range result.Figures {
		t.Logf("%-60s %10.2f %10.2f %+6.1f %%", f.Name, f.Got, f.Want, 100*(f.Got/f.Want-1))
	}
	t.Log(fit.ErrorsOf(result.Figures))
	text, err := json.MarshalIndent(result.Profile, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*fitted, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
