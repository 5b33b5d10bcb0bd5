package cli

// This file holds programs to what package cli promises of a command line
// that cannot be run. Programs run in the test's process, without one of their own: each call
// makes its program anew, since cobra keeps what it has parsed.

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// identifier is a name of Go's: HTTPAddr, MaxQueue, node.Config.
var identifier = regexp.MustCompile(`\b([A-Z]+[a-z]+[A-Z]\w*|[A-Z]{2,}[a-z]{2,}\w*|[a-z]+\.[A-Z]\w+)\b`)

// names look like Go's and are words of the field, or plurals of abbreviations.
var names = regexp.MustCompile(`\b(NaN|[KMG]iB|OpenAI|vLLM|SGLang|NICs|[A-Z]+s)\b`)

// inside are words of Go's packages, and of what a fault of ours looks like.
var inside = []string{"strconv", "parsing", "unmarshal", "json:", "invalid syntax", "missing port", "too many colons", "unknown unit", "time: ", "%!", "panic", "goroutine", ".go:", "<nil>", "map["}

// tells runs a program with a command line that ends well, and looks for texts on its
// standard output.
func tells(t *testing.T, program func() Program, args string, texts ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := program().Run(t.Context(), strings.Fields(args), &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Errorf("%s: exit %d: %s", args, code, &stderr)
	}
	for _, text := range texts {
		if !strings.Contains(stdout.String(), text) {
			t.Errorf("%s does not say %q:\n%s", args, text, &stdout)
		}
	}
}

// zeros holds the flags of a program and its commands to the rule for a time of 0: it is
// refused, or the flag's help says what it does, "; 0: not at all".
func zeros(t *testing.T, program func() Program) {
	t.Helper()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "duration" && !IsPositive(f) && !strings.Contains(f.Usage, "; 0: ") {
				t.Errorf("%s --%s does not say what 0 is: %s", cmd.CommandPath(), f.Name, f.Usage)
			}
		})
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(program().Root)
}

// refuses runs a program with each command line, in this process. It must exit 2 without a
// word on standard output, and say what is wrong in a few lines that name the flag, name
// nothing of Go's and point to the help. A case is a command line, split at blanks, where ~
// is nothing; and how standard error begins behind the program's name.
func refuses(t *testing.T, program func() Program, cases [][2]string) {
	t.Helper()
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c[0], "/", "|"), func(t *testing.T) {
			args := strings.Fields(c[0])
			for i, arg := range args {
				args[i] = strings.ReplaceAll(arg, "~", "")
			}
			// One that is not refused runs: long enough to tell, and it is ended.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			p := program()
			var stdout, stderr bytes.Buffer
			code := p.Run(ctx, args, &stdout, &stderr)
			said := stderr.String()
			if code != ExitUsage || stdout.Len() > 0 {
				t.Errorf("exit %d, want %d: %s%s", code, ExitUsage, said, stdout.String())
			}
			complains(t, p.Root.Name()+": "+c[1], said, args)
		})
	}
}

// complains holds what a program says of a command line, said, to what [Refused] asks.
func complains(t *testing.T, want, said string, args []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if len(lines) > 5 {
		t.Errorf("%d lines: %s", len(lines), said)
	}
	if !strings.HasPrefix(said, want) {
		t.Errorf("%s\nwant %s", said, want)
	}
	if !strings.Contains(lines[len(lines)-1], "--help' for the flags") {
		t.Errorf("it does not point to the help: %s", said)
	}
	seen := map[string]bool{}
	for _, line := range lines {
		if seen[line] {
			t.Errorf("said twice: %s", line)
		}
		seen[line] = true
		for _, arg := range args {
			line = strings.ReplaceAll(line, arg, "") // what the user wrote may be anything
		}
		if name := identifier.FindString(names.ReplaceAllString(line, "")); name != "" {
			t.Errorf("%s is a name of the program's text: %s", name, said)
		}
		for _, word := range inside {
			if strings.Contains(line, word) {
				t.Errorf("%q is no word of ours: %s", word, said)
			}
		}
	}
}
