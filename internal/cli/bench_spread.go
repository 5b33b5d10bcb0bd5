package cli

import (
	"slices"
	"strings"
)

// several are flags of kvferry bench and sim that take several values after one name in vLLM's and
// SGLang's clients, and optional is one whose value may be left out, so that command lines of
// these clients can be given as they are.
var (
	several  = []string{"goodput", "header", "metadata", "lora-name", "lora-modules", "worker-urls", "metrics-url"}
	optional = []string{"find-rate"}
)

// spread has kvferry bench, sim and proxy take them so.
func spread(args []string) []string {
	switch {
	case len(args) > 0 && args[0] == "sim":
		return Spread(args, several, nil)
	case len(args) > 0 && (args[0] == "proxy" || args[0] == "serve"):
		return spreadProxy(args)
	case len(args) == 0 || args[0] != "bench":
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
	return Spread(args, several, optional)
}

func spreadProxy(args []string) []string {
	return Spread(args, []string{"served-model-name", "lora-modules"}, nil)
}
