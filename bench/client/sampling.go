package client

import (
	"slices"

	"kvferry/internal/config"
)

// A Parameter says how the server samples: a field of OpenAI's and vLLM's requests, or of
// the sampling_params of SGLang's /generate. What is not named is as the server has it.
type Parameter struct {
	Name  string // one of Parameters
	Value float64
}

// Parameters are all there are, under the names that vLLM's client sends them by.
var Parameters = []string{"top_p", "top_k", "min_p", "temperature", "frequency_penalty", "presence_penalty", "repetition_penalty"}

// native are those that SGLang's client has for /generate. vLLM's refuses all of them for
// any API but OpenAI's.
var native = []string{"temperature", "top_p"}

// checkSampling says what is wrong with parameters for a backend, by their names.
func checkSampling(all []Parameter, b Backend, faults *config.Faults) {
	for i, p := range all {
		field := "Sampling." + p.Name
		switch {
		case !slices.Contains(Parameters, p.Name):
			faults.Add(field, p.Value, "it is no parameter of sampling: use %s", config.Or(Parameters))
		case slices.ContainsFunc(all[:i], func(o Parameter) bool { return o.Name == p.Name }):
			faults.Add(field, p.Value, "it is given twice")
		case b.kind == generate && !slices.Contains(native, p.Name):
			faults.Add(field, p.Value, "it is for OpenAI's API, and %s is SGLang's own: leave it out, or use sglang-oai", b.Name)
		case p.Name == "top_k" && p.Value != float64(int64(p.Value)):
			faults.Add(field, p.Value, "write a whole number")
		}
	}
}

// names are those of parameters.
func names(all []Parameter) (list []string) {
	for _, p := range all {
		list = append(list, p.Name)
	}
	return list
}
