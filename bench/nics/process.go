package nics

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"kvferry/internal/proc"
	lab "kvferry/lab/nics"
)

// startTimeout bounds how long a program may take until it announces itself.
const startTimeout = time.Minute

// start starts kvferry, or a program that is measured beside it, on a host of the lab. The
// program is asked to end when ctx ends, too.
func start(ctx context.Context, l *lab.Lab, host int, c proc.Cmd) (*proc.Proc, error) {
	within, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("it is not ready within %v", startTimeout))
	defer cancel()
	p, err := proc.Start(within, on(l, host, c))
	if err != nil {
		return nil, fmt.Errorf("%s on host %d: %w", name(c.Args), host, err)
	}
	context.AfterFunc(ctx, func() { _ = p.Stop() })
	return p, nil
}

// output runs a program on a host to its end, and returns its standard output.
func output(ctx context.Context, l *lab.Lab, host int, args ...string) (string, error) {
	var out strings.Builder
	err := proc.Run(ctx, on(l, host, proc.Cmd{Args: args, Out: &out}))
	if err != nil {
		err = fmt.Errorf("%s on host %d: %w", name(args), host, err)
	}
	return out.String(), err
}

// on adds to a command where it runs and how it is ended.
func on(l *lab.Lab, host int, c proc.Cmd) proc.Cmd {
	c.Namespace, c.Stop, c.Grace = l.Namespace(host), syscall.SIGTERM, 5*time.Second
	return c
}

// name is the program and what it was asked to do, "kvferry rail bench".
func name(args []string) string {
	name := filepath.Base(args[0])
	if len(args) > 1 && !strings.HasPrefix(args[1], "-") {
		name += " " + args[1]
	}
	return name
}
