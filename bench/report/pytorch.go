package report

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
)

// vllmMetrics are the figures that vLLM writes for PyTorch's benchmark database, in its order
// (save_to_pytorch_benchmark_format of vllm/benchmarks/serve.py).
var vllmMetrics = []string{
	"median_ttft_ms", "mean_ttft_ms", "std_ttft_ms", "p99_ttft_ms",
	"mean_tpot_ms", "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms",
	"median_itl_ms", "mean_itl_ms", "std_itl_ms", "p99_itl_ms",
}

// PyTorchVariable is the environment variable that has vLLM write PyTorch's records, too,
// beside a result: NAME.pytorch.json for NAME.json.
const PyTorchVariable = "SAVE_TO_PYTORCH_BENCHMARK_FORMAT"

// PyTorchName is the name of the file of PyTorch's records beside a result's.
func PyTorchName(file string) string {
	return strings.TrimSuffix(file, filepath.Ext(file)) + ".pytorch.json"
}

// PyTorch is the result in the format of PyTorch's benchmark database, a record a figure.
// detailed is --save-detailed, file the result's name. Where vLLM has its command line's
// options, it has the run's Setup.
func (v *VLLM) PyTorch(detailed bool, file string) ([]byte, error) {
	text, err := json.Marshal(v.run.Setup)
	if err != nil {
		return nil, err
	}
	var args map[string]any
	if err := json.Unmarshal(text, &args); err != nil {
		return nil, err
	}
	result := v.result()
	if !detailed {
		result.drop(perRequest...)
	}
	result.drop("ttfts", "itls", "generated_texts", "errors") // "rather big", says the tool
	extra := &object{}
	for _, m := range result.members {
		if !slices.Contains(vllmMetrics, m.key) {
			extra.set(m.key, m.value)
		}
	}
	if tensors, ok := extra.get("tensor_parallel_size"); ok {
		args["tensor_parallel_size"] = tensors
	}
	field := func(name string) any { // extract_field: of the metadata, else an empty word
		value, ok := extra.get(name)
		if !ok {
			return ""
		}
		return value
	}
	type (
		benchmark struct {
			Name  string         `json:"name"`
			Extra map[string]any `json:"extra_info"`
		}
		model struct {
			Name string `json:"name"`
		}
		metric struct {
			Name   string    `json:"name"`
			Values []float64 `json:"benchmark_values"`
			Extra  *object   `json:"extra_info"`
		}
		record struct {
			Benchmark benchmark `json:"benchmark"`
			Model     model     `json:"model"`
			Metric    metric    `json:"metric"`
		}
	)
	records := []record{}
	for _, name := range vllmMetrics {
		value, ok := result.get(name)
		if !ok {
			continue
		}
		records = append(records, record{
			benchmark{"vLLM benchmark", map[string]any{
				"args": args, "compilation_config.mode": field("compilation_config.mode"),
				"optimization_level": field("optimization_level"),
				"use_compile":        field("compilation_config.mode") != "0" && !strings.Contains(file, "eager"),
			}},
			model{v.run.Model},
			metric{name, []float64{value.(float64)}, extra},
		})
	}
	return json.Marshal(records)
}
