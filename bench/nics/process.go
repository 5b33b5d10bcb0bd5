package nics

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	lab "kvferry/lab/nics"
)

// A process is kvferry, or a program that is measured beside it, on a host of the lab.
type process struct {
	cmd    *exec.Cmd
	lines  chan string  // of standard output, closed at its end
	stderr bytes.Buffer // read once over
	over   chan struct{}
	err    error
}

// stopGrace is how long a process has after SIGTERM.
const stopGrace = 5 * time.Second

// start runs kvferry with args on a host. It gets SIGTERM when ctx is done, and ends
// with this process.
func start(ctx context.Context, l *lab.Lab, host int, exe string, args ...string) (*process, error) {
	return startCommand(l, host, exec.CommandContext(ctx, exe, args...))
}

// startCommand is start of another program than kvferry. cmd is one of exec.CommandContext.
func startCommand(l *lab.Lab, host int, cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, lines: make(chan string, 64), over: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopGrace
	p.cmd.SysProcAttr = ownGroup() // a Ctrl-C is this process's to handle
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	p.cmd.Stdout = theirs
	exited, err := l.Exec(host, p.cmd)
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("%s on host %d: %w", p.name(), host, err)
	}
	go func() {
		defer close(p.over)
		defer out.Close()
		in := bufio.NewScanner(out)
		in.Buffer(nil, 64<<20)
		for in.Scan() {
			p.lines <- in.Text()
		}
		close(p.lines)
		if err := <-exited; err != nil {
			said := strings.TrimSpace(p.stderr.String())
			p.err = fmt.Errorf("%s on host %d: %w: %s", p.name(), host, err, said)
		}
	}()
	return p, nil
}

// name is the program and what it was asked to do, "kvferry rail bench".
func (p *process) name() string {
	name := filepath.Base(p.cmd.Path)
	if len(p.cmd.Args) > 1 && !strings.HasPrefix(p.cmd.Args[1], "-") {
		name += " " + p.cmd.Args[1]
	}
	return name
}

// await reads lines until one begins with the text, and returns that.
func (p *process) await(ctx context.Context, text string) (line string, err error) {
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				<-p.over
				return "", errors.Join(fmt.Errorf("%s ended before it said %q", p.name(), text), p.err)
			}
			if strings.HasPrefix(line, text) {
				return line, nil
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// rest is what is left of its output, when it has ended.
func (p *process) rest() (string, error) {
	var b strings.Builder
	for line := range p.lines {
		b.WriteString(line + "\n")
	}
	<-p.over
	return b.String(), p.err
}

// stop ends it, whatever it says.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(stopGrace, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_, _ = p.rest()
}

// self is this program.
func self() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("this program's file: %w", err)
	}
	return exe, nil
}
