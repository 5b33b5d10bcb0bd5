package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// completes asks a program as a shell does for what a command line may go on with, split at
// blanks, and looks for words in the answer.
func completes(t *testing.T, program func() Program, typed string, words ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	args := append([]string{"__completeNoDesc"}, strings.Fields(typed)...)
	code := program().Run(t.Context(), args, &stdout, &stderr)
	offered := strings.Split(stdout.String(), "\n")
	for _, word := range words {
		if code != 0 || !slices.Contains(offered, word) {
			t.Errorf("%s: %s is not offered: exit %d, %q", typed, word, code, offered)
		}
	}
}
