package bench_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"kvferry/bench/calibrate"
	"kvferry/bench/document"
	"kvferry/bench/sglang"
	"kvferry/engine"
)

// A crossFit is a server's profile fitted to one of its runs alone; the other one it predicts.
type crossFit struct{ fitted, predicted sglang.Published }

// crossFits are two of each server that two runs of DeepSeek-V3 were published of.
func crossFits() (all []crossFit) {
	runs := runsOf(deepSeek)
	for _, a := range runs {
		for _, b := range runs {
			if a.Profile == b.Profile && a.Setting != b.Setting {
				all = append(all, crossFit{fitted: a, predicted: b})
			}
		}
	}
	return all
}

// profile is the name of the file in profiles: deepseek-v3-flashinfer-at-32.
func (c *crossFit) profile() string {
	backend, _, _ := strings.Cut(c.fitted.Setting, "/")
	return fmt.Sprintf("%s-%s-at-%d", c.fitted.Workload, backend, c.fitted.MaxConcurrency)
}

// start is where a search begins: the datasheet's profile of eight B200, which what was published
// picks and no figure of these runs has gone into, with guesses of what no datasheet says. What the batch's
// size makes of a step is not searched, as a run at one concurrency says nothing of it: experts and
// all-reduces stay what the datasheet says.
func (c *crossFit) start() (*engine.Profile, error) {
	p, err := loadProfile(deepSeekDatasheet + "b200")
	if err != nil {
		return nil, err
	}
	server, err := loadProfile(c.fitted.Profile)
	if err != nil {
		return nil, err
	}
	p.Name, p.GPU, p.Engine = c.profile(), server.GPU, server.Engine // the flags that the record has
	return calibrate.WithFields(p, map[string]float64{"costs.request_ms": 5, "costs.front_end_in_ms": 1, "costs.front_end_out_ms": 0.02, "costs.cold_ms": 500})
}

// A search is a fit that can be made again.
type search struct {
	file       string // of its profile, less .json
	start      func() (*engine.Profile, error)
	runs       []sglang.Published // that it fits to
	parameters []calibrate.Parameter
}

// searches returns a search for each profile in testdata/profiles that was fitted, and for the shipped one.
func searches() []search {
	var all []search
	for _, c := range crossFits() {
		all = append(all, search{c.profile(), c.start, []sglang.Published{c.fitted}, searched})
	}
	const small = "sglang-qwen2.5-0.5b"
	return append(all, search{small, func() (*engine.Profile, error) { return loadProfile(small) }, runsOf("qwen2.5-0.5b"), searchedSmall})
}

// searched are the fields of a cross fit. Those that tensor parallelism divides are of eight GPUs in one.
var searched = []calibrate.Parameter{
	{Field: "costs.request_ms", Low: 0.2, High: 30},
	{Field: "costs.front_end_in_ms", Low: 0.1, High: 6},
	{Field: "costs.front_end_out_ms", Low: 0.002, High: 0.1},
	{Field: "costs.prefill_token_ms", Low: 0.01, High: 1},
	{Field: "costs.prefill_step_ms", Low: 0.5, High: 40},
	{Field: "costs.cold_ms", Low: 1, High: 5000},
	{Field: "costs.decode_step_ms", Low: 20, High: 300},
	{Field: "costs.decode_kv_token_ns", Low: 1, High: 300},
}

// searchedSmall are the fields of the fit of Qwen2.5-0.5B.
var searchedSmall = []calibrate.Parameter{
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

// run makes the fit, in so many evaluations of the runs at most.
func (s *search) run(ctx context.Context, evaluations int) (*calibrate.SearchResult, error) {
	start, err := s.start()
	if err != nil {
		return nil, err
	}
	return calibrate.Search{
		Profile: start, Parameters: s.parameters, Evaluations: evaluations, Seed: 1,
		Figures: func(ctx context.Context, p *engine.Profile) (figures []calibrate.Figure, err error) {
			for i := range s.runs {
				of, err := judged(ctx, &s.runs[i], p)
				if err != nil {
					return nil, err
				}
				figures = append(figures, of...)
			}
			return figures, nil
		},
	}.Run(ctx)
}

// evaluations of a search: a minute on a core.
const evaluations = 500

// fitsTo has TestFits make the fits in full.
var fitsTo = flag.String("fits", "", "folder for the profiles that TestFits makes again (5 minutes)")

// TestFits: a search begins where nothing was fitted, comes closer, and what it makes are profiles;
// those in the folder are of the runs that they are named by. With -fits it makes all of them again.
func TestFits(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: without -short only, as .ci/run has it")
	}
	t.Parallel()
	dir, most := t.TempDir(), 3
	if *fitsTo != "" {
		dir, most = *fitsTo, evaluations
	}
	for _, s := range searches() {
		r, err := s.run(t.Context(), most)
		if err != nil {
			t.Fatalf("%s: %v", s.file, err)
		}
		r.Profile.Disagg.DecodeStepMS = r.Profile.Costs.DecodeStepMS
		file := s.file + ".json"
		if err := document.WriteFiles(dir, document.File{Name: file, Write: func(w io.Writer) error { return document.WriteJSON(w, r.Profile) }}); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", filepath.Join(dir, file), calibrate.ErrorsOf(r.Figures))
	}
	if n := len(searches()); n != len(crossFits())+1 {
		t.Errorf("%d fits", n)
	}
	for _, c := range crossFits() {
		p, err := engine.LoadProfile(filepath.Join(dir, c.profile()+".json"))
		if err != nil {
			t.Fatal(err)
		}
		kept, err := loadProfile(c.profile())
		if err != nil {
			t.Fatal(err)
		}
		if kept.Name != p.Name || kept.Engine.Scheduler != p.Engine.Scheduler || kept.Costs.Experts != p.Costs.Experts || kept.Costs.TensorParallel != p.Costs.TensorParallel {
			t.Errorf("%s: %+v in the folder, %+v of a search", c.profile(), kept, p)
		}
	}
}
