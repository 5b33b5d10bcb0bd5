package bench_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"kvferry/bench"
	"kvferry/bench/calibrate"
	"kvferry/bench/sglang"
	"kvferry/engine"
)

// Settings of Mooncake's table, and what is said of them.
const (
	colocated     = "nondisagg,chunked"
	disaggregated = "rdma,rdma2,tcp"
)

// checks are all sets, in the order of the page.
func checks() []check {
	all := []check{
		mooncake(colocated, engine.DefaultProfile, Limit{Median: 0.022, P90: 0.062}),
		mooncake(disaggregated, engine.DefaultProfile, Limit{Median: 0.042, P90: 0.18}),
		mooncake(colocated, engine.AttentionProfile, Limit{Median: 0.019, P90: 0.057}),
		mooncake(disaggregated, engine.AttentionProfile, Limit{Median: 0.034, P90: 0.18}),
	}
	for _, p := range sglang.Runs() {
		limit, known := fitted[p.Name()]
		if !known {
			limit = Limit{Median: 0.10, P90: 0.25}
		}
		all = append(all, run(p, p.Profile, InSample, limit))
	}
	for _, c := range crossFits() {
		all = append(all,
			run(c.fitted, c.profile(), InSample, Limit{Median: 0.03, P90: 0.10, Within: 13}),
			run(c.predicted, c.profile(), OtherRun, Limit{Median: 0.08, P90: 0.12, Within: 12}))
	}
	return append(append(all, datasheets()...), anchored()...)
}

// fitted are the limits of runs that their profile was fitted to.
var fitted = map[string]Limit{
	"qwen2.5-0.5b 200":              {Median: 0.05, P90: 0.12, Within: 17},
	"deepseek-v3 flashinfer/256x32": {Median: 0.02, P90: 0.12, Within: 13},
	"deepseek-v3 flashinfer/128x16": {Median: 0.02, P90: 0.12, Within: 14},
	"deepseek-v3 triton/256x32":     {Median: 0.02, P90: 0.12, Within: 13},
	"deepseek-v3 triton/128x16":     {Median: 0.02, P90: 0.12, Within: 14},
	"qwen3-coder-480b 320x80":       {Median: 0.05, P90: 0.12, Within: 16},
	"lora-trace static/100":         {Median: 0.06, P90: 0.13},
	"lora-trace dlora/100":          {Median: 0.11, P90: 0.20},
	"lora-trace static/1000":        {Median: 0.03, P90: 0.04, Within: 5},
	"lora-trace dlora/1000":         {Median: 0.03, P90: 0.04, Within: 5},
}

// mooncake is nine latencies of all published rows of some settings.
func mooncake(settings, profile string, limit Limit) check {
	table := "Mooncake A10, " + strings.ReplaceAll(settings, ",", ", ")
	return check{
		table: table, profile: profile, sample: InSample, limit: limit,
		figures: func(ctx context.Context, p *engine.Profile) ([]calibrate.Figure, error) {
			chosen, err := bench.ParseSettings(settings)
			if err != nil {
				return nil, err
			}
			return bench.Latencies(ctx, p, chosen)
		},
	}
}

// run is the figures that a published run of SGLang is judged by.
func run(p sglang.Published, profile string, sample Sample, limit Limit) check {
	return check{
		table: p.Name(), profile: profile, sample: sample, limit: limit,
		figures: func(ctx context.Context, server *engine.Profile) ([]calibrate.Figure, error) {
			return judged(ctx, &p, server)
		},
	}
}

// judged computes the figures that a run is judged by.
func judged(ctx context.Context, p *sglang.Published, server *engine.Profile) ([]calibrate.Figure, error) {
	row, err := sglang.Compute(ctx, p, server)
	if err != nil {
		return nil, err
	}
	if len(row.Faults) > 0 {
		return nil, fmt.Errorf("%s: %s", p.Name(), strings.Join(row.Faults, "; "))
	}
	var figures []calibrate.Figure
	for _, key := range sglang.Judged(p.Figures) {
		figures = append(figures, calibrate.Figure{Name: key, Got: row.Metrics[key], Want: p.Figures[key], Scale: closeBy / 2})
	}
	return figures, nil
}

// deepSeek is a workload of several runs.
const deepSeek = "deepseek-v3"

// Profiles of datasheet.Server, made of the model in front of the last dash and a GPU.
const (
	a10Datasheet      = "qwen2.5-7b-gptq-int4-a10"
	deepSeekDatasheet = "deepseek-v3-"
)

// deepSeekGPUs lists the GPUs of the table of which eight have the memory for DeepSeek-V3, with the limits of their
// median ITL and of their mean TTFT.
var deepSeekGPUs = []struct {
	name        string
	limit, ttft Limit
}{
	{"h200", Limit{Median: 0.14, P90: 0.20}, Limit{Median: 0.74, P90: 0.78}},
	{"b200", Limit{Median: 0.40, P90: 0.43}, Limit{Median: 0.85, P90: 0.88}},
	{"mi300x", Limit{Median: 0.20, P90: 0.25}, Limit{Median: 0.73, P90: 0.77}},
}

// datasheets are sets of profiles that nothing was fitted to.
func datasheets() []check {
	means := mooncake(colocated, a10Datasheet, Limit{Median: 0.12, P90: 0.23})
	of := means.figures
	means.table, means.sample = means.table+", means", Datasheet
	means.figures = func(ctx context.Context, p *engine.Profile) ([]calibrate.Figure, error) {
		figures, err := of(ctx, p)
		return slices.DeleteFunc(figures, func(f calibrate.Figure) bool { return !strings.Contains(f.Name, " mean_") }), err
	}
	all := []check{means}
	for _, x := range inferenceX {
		all = append(all, named(x.table(), deepSeekDatasheet+x.gpu, Datasheet, x.limit, x.runs()))
	}
	for _, gpu := range deepSeekGPUs {
		all = append(all, named(deepSeek+", four runs, median ITL", deepSeekDatasheet+gpu.name, Datasheet, gpu.limit, deepSeekOf("median_itl_ms")))
	}
	for _, gpu := range deepSeekGPUs {
		all = append(all, named(deepSeek+", four runs, mean TTFT (beyond a datasheet)", deepSeekDatasheet+gpu.name, Datasheet, gpu.ttft, deepSeekOf("mean_ttft_ms")))
	}
	return all
}

// Profiles of datasheets and the ITL of one request, by the thread that it was published in.
const (
	of6111 = deepSeekDatasheet + "b200-sglang-6111"
	of3363 = deepSeekDatasheet + "b200-inferencex-3363"
)

// anchored are sets of these, of runs that have no part in that figure.
func anchored() []check {
	last := inferenceX[len(inferenceX)-1]
	last.what, last.points = "six runs", last.points[1:]
	return []check{
		named(deepSeek+", four runs, median ITL", of6111, Anchored, Limit{Median: 0.10, P90: 0.16}, deepSeekOf("median_itl_ms")),
		named(last.table(), of3363, Anchored, Limit{Median: 0.08, P90: 0.23}, last.runs()),
	}
}

// named is all published figures of some runs.
func named(table, profile string, sample Sample, limit Limit, runs []sglang.Published) check {
	return check{table: table, profile: profile, sample: sample, limit: limit, figures: func(ctx context.Context, server *engine.Profile) ([]calibrate.Figure, error) {
		var figures []calibrate.Figure
		for _, p := range runs {
			row, err := sglang.Compute(ctx, &p, server)
			if err != nil {
				return nil, err
			}
			for _, key := range sglang.Judged(p.Figures) {
				figures = append(figures, calibrate.Figure{Name: p.Setting + " " + key, Got: row.Metrics[key], Want: p.Figures[key]})
			}
		}
		return figures, nil
	}}
}

// runsOf are the published ones of a workload.
func runsOf(workload string) []sglang.Published {
	return slices.DeleteFunc(slices.Clone(sglang.Runs()), func(p sglang.Published) bool { return p.Workload != workload })
}

// deepSeekOf are the four of DeepSeek-V3 with one figure alone.
func deepSeekOf(key string) []sglang.Published {
	runs := runsOf(deepSeek)
	for i := range runs {
		runs[i].Figures = sglang.Figures{key: runs[i].Figures[key]}
	}
	return runs
}

// A series is runs of DeepSeek-R1, which has DeepSeek-V3's shape, on eight GPUs that are named, by
// SemiAnalysisAI/InferenceX: ten requests for each that is under way at a time, of 0.8 to 1 times 1,024 tokens in and out.
// Which lengths were drawn is not known, and matters little to a mean of so many.
type series struct {
	thread, gpu string
	what        string
	limit       Limit
	points      []point
}

// A point is the mean TPOT at so many requests at a time, in milliseconds.
type point struct {
	concurrency int
	tpot        float64
}

// inferenceX are series with SGLang 0.5.7, and 0.5.12 twice.
var inferenceX = []series{
	{"InferenceX#870", "h200", "four runs", Limit{Median: 0.21, P90: 0.25}, []point{{8, 12.8}, {16, 17.2}, {32, 25.6}, {64, 34.6}}},
	{"InferenceX#3288", "h200", "five runs", Limit{Median: 0.40, P90: 0.42}, []point{{4, 9.7}, {8, 11.73}, {16, 15.28}, {32, 21.8}, {64, 29.77}}},
	{"InferenceX#3363", "b200", "seven runs", Limit{Median: 0.16, P90: 0.28}, []point{{1, 7.18}, {2, 7.93}, {4, 8.82}, {8, 10.96}, {16, 13.09}, {32, 16.21}, {64, 21.73}}},
}

func (x *series) table() string { return x.thread + ", " + x.what + ", mean TPOT" }

func (x *series) runs() (runs []sglang.Published) {
	for _, p := range x.points {
		runs = append(runs, sglang.Published{
			Workload: x.thread, Setting: fmt.Sprintf("at %d", p.concurrency), Backend: "sglang-oai", NumPrompts: 10 * p.concurrency,
			InputLen: 1024, OutputLen: 1024, RangeRatio: 0.8, Seed: 1, MaxConcurrency: p.concurrency, Figures: sglang.Figures{"mean_tpot_ms": p.tpot},
		})
	}
	return runs
}
