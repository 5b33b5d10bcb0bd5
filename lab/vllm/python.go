package vllm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// minors are the versions of Python 3 for which all packages have wheels, the best known first.
var minors = []string{"3.12", "3.11", "3.13"}

// probe prints where a Python is and which, and fails if it has no pip.
const probe = "import pip, sys; print(sys.executable, '%d.%d.%d' % sys.version_info[:3])"

// findPython returns the first of candidates that will do, and its version.
func findPython(ctx context.Context, candidates []string, run runner) (path, version string, err error) {
	var tried []string
	for _, name := range candidates {
		file, err := exec.LookPath(name)
		if err != nil {
			tried = append(tried, name+" is not there")
			continue
		}
		var output []string
		err = run(ctx, command{
			args: []string{file, "-c", probe}, env: environ(nil),
			line: func(text string) { output = append(output, text) },
		})
		if ctx.Err() != nil {
			return "", "", context.Cause(ctx)
		}
		said := ""
		if len(output) > 0 {
			said = output[len(output)-1]
		}
		path, version, ok := strings.Cut(said, " ")
		switch {
		case err != nil && strings.Contains(said, "'pip'"):
			tried = append(tried, name+" lacks pip: apt-get install python3-pip has it")
		case err != nil:
			tried = append(tried, name+" does not run")
		case !ok || !slices.ContainsFunc(minors, func(minor string) bool { return strings.HasPrefix(version, minor+".") }):
			tried = append(tried, name+" is Python "+version)
		default:
			return path, version, nil
		}
	}
	return "", "", fmt.Errorf("%w: it takes %s with pip (%s)", ErrPython, strings.Join(minors, ", "), strings.Join(tried, "; "))
}

// ErrPython is the error of a setup without a Python that will do.
var ErrPython = errors.New("there is no Python for vLLM here: name one with --python")

// candidates are the Pythons to look at: the one that was asked for and no other, or that of the
// environment as it is, then those of the PATH.
func candidates(asked, before string) []string {
	if asked != "" {
		return []string{asked}
	}
	var all []string
	if before != "" {
		all = append(all, before)
	}
	for _, minor := range minors {
		all = append(all, "python"+minor)
	}
	return append(all, "python3")
}
