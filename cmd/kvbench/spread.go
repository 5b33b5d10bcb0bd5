package main

import (
	"slices"
	"strings"
)

// several are flags of kvbench serve that take several values after one name, as argparse's
// nargs="+" has them in vLLM's and SGLang's clients: --goodput ttft:200 tpot:50.
var several = func() []string {
	all := []string{"goodput", "header", "metadata", "lora-name", "lora-modules", "worker-urls"}
	for name, f := range foreigns {
		if f.takes == many {
			all = append(all, name)
		}
	}
	return all
}()

// optional is a flag whose value may be left out, and may stand behind a space all the same.
const optional = "find-rate"

// spread writes those as flags of one value each, so that command lines of these clients can be
// given as they are. The first value may stand behind "=".
func spread(args []string) []string {
	if len(args) == 0 || args[0] != "serve" {
		return args
	}
	var out []string
	flag := "" // that takes more values
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if name, ok := strings.CutPrefix(a, "--"); ok {
			name, _, given := strings.Cut(strings.ReplaceAll(name, "_", "-"), "=")
			if name == optional && !given && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				flag = "--" + name
				continue
			}
			if name == "profile" && !given && (i+1 == len(args) || strings.HasPrefix(args[i+1], "-")) {
				out = append(out, "--profile=") // the tools' takes no value: it must not take the next flag
				continue
			}
			if flag = ""; slices.Contains(several, name) {
				flag = "--" + name
				if given {
					_, value, _ := strings.Cut(a, "=")
					out = append(out, flag+"="+value)
				} else if i+1 == len(args) || strings.HasPrefix(args[i+1], "-") {
					out = append(out, a) // without a value: the parser says so
				}
				continue
			}
		}
		switch {
		case flag != "" && !strings.HasPrefix(a, "-"):
			out = append(out, flag+"="+a)
			if flag == "--"+optional {
				flag = ""
			}
		default:
			flag = ""
			out = append(out, a)
		}
	}
	return out
}
