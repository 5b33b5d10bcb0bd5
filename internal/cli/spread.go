package cli

import (
	"slices"
	"strings"
)

// Spread rewrites flags that take several values after one name, as argparse's nargs="+" has
// them in vLLM and SGLang, --goodput ttft:200 tpot:50, as flags of one value each. The first
// value may stand behind "=". optional are flags whose value may be left out, and may stand
// behind a blank all the same. Nothing behind "--" is changed.
func Spread(args, several, optional []string) []string {
	var out []string
	flag, only := "", false // that takes more values, or only one
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if name, ok := strings.CutPrefix(a, "--"); ok {
			name, value, given := strings.Cut(name, "=")
			name = strings.ReplaceAll(name, "_", "-")
			last := i+1 == len(args) || strings.HasPrefix(args[i+1], "-")
			if slices.Contains(optional, name) && !given && !last {
				flag, only = "--"+name, true
				continue
			}
			if flag = ""; slices.Contains(several, name) {
				flag, only = "--"+name, false
				switch {
				case given:
					out = append(out, flag+"="+value)
				case last:
					out = append(out, a) // without a value: the parser says so
				}
				continue
			}
		}
		if flag == "" || strings.HasPrefix(a, "-") {
			flag = ""
			out = append(out, a)
			continue
		}
		if out = append(out, flag+"="+a); only {
			flag = ""
		}
	}
	return out
}
