package vllm

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestExecute: lines of both outputs, and the exit status.
func TestExecute(t *testing.T) {
	var lines []string
	c := command{line: func(text string) { lines = append(lines, text) }}
	c.args, c.env = []string{"/bin/sh", "-c", "echo $A; echo two >&2; exit 3"}, []string{"A=one"}
	if err := execute(t.Context(), c); err == nil || err.Error() != "exit status 3" || !slices.Equal(lines, []string{"one", "two"}) {
		t.Errorf("%q, %v", lines, err)
	}
}

// TestExecuteEnds: with the context a command ends, and its children.
func TestExecuteEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := 0
	err := execute(ctx, command{
		args: []string{"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, env: os.Environ(),
		line: func(text string) {
			child, _ = strconv.Atoi(text)
			cancel()
		},
	})
	if err == nil || err.Error() != "signal: killed" || ctx.Err() != context.Canceled || child == 0 {
		t.Fatalf("%v; child %d", err, child)
	}
	for deadline := time.Now().Add(time.Minute); alive(child); {
		if time.Now().After(deadline) {
			t.Fatalf("child %d goes on", child)
		}
	}
}

// alive reports whether a process runs: one that nobody has waited for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return err == nil && !bytes.HasPrefix(state, []byte("Z"))
}
