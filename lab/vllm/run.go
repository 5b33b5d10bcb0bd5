package vllm

import (
	"context"
	"errors"
	"slices"
	"strings"

	"kvferry/internal/proc"
)

// A command is a program to be run to its end.
type command struct {
	args []string
	env  []string
	line func(string) // each line of its output and its errors, from one goroutine
}

// A runner runs a command and returns its error.
type runner func(context.Context, command) error

// execute is the runner that starts a process. It is killed when ctx ends.
func execute(ctx context.Context, c command) error {
	p, err := proc.Start(ctx, proc.Cmd{Args: c.args, Env: c.env, Log: proc.Lines(c.line)})
	if err != nil {
		return err
	}
	p.In.Close() // it is asked nothing
	defer context.AfterFunc(ctx, p.Kill)()
	return p.Wait()
}

// ErrIndex is the cause of a setup that could not get packages.
var ErrIndex = errors.New("the package index cannot be reached, or does not have the package. " +
	"Connect this machine, or name a mirror in PIP_INDEX_URL, then run kvferry lab vllm setup again: it goes on where it was")

// ErrFull is the cause of a setup whose disk is full.
var ErrFull = errors.New("the disk is full: make room, or choose another place with --cache, then run kvferry lab vllm setup again")

// causes are what pip and uv say of what a user can change, in any of their words.
var causes = []struct {
	err  error
	says []string
}{
	{ErrFull, []string{"No space left on device", "Disk quota exceeded"}},
	{ErrIndex, []string{
		"Could not find a version", "No matching distribution", "NewConnectionError", // pip
		"Failed to fetch", "Failed to download", "error sending request", "not found in the package registry", "there is no version of", // uv
	}},
}

// cause is the error behind what a command printed, or nil.
func cause(output []string) error {
	for _, c := range causes {
		if slices.ContainsFunc(output, func(line string) bool {
			return slices.ContainsFunc(c.says, func(words string) bool { return strings.Contains(line, words) })
		}) {
			return c.err
		}
	}
	return nil
}
