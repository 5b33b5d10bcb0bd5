package main

import (
	"slices"
	"strings"

	"kvferry/internal/cli"
)

// several are flags of kvbench serve and simulate that take several values after one name in vLLM's and
// SGLang's clients, and optional is one whose value may be left out, so that command lines of
// these clients can be given as they are.
var (
	several  = []string{"goodput", "header", "metadata", "lora-name", "lora-modules", "worker-urls", "metrics-url"}
	optional = []string{"find-rate"}
)

// spread has kvbench serve and simulate take them so.
func spread(args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "simulate":
		return cli.Spread(args, several, nil)
	case len(args) == 0 || args[0] != "serve":
		return args
	}
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--" {
			break
		}
		// The tools' --profile takes no value: it must not take the next flag.
		if a == "--profile" && (i+1 == len(args) || strings.HasPrefix(args[i+1], "-")) {
			args[i] = "--profile="
		}
	}
	return cli.Spread(args, several, optional)
}
