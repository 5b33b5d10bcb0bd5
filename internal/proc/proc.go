// Package proc runs child processes: [Start] starts one, and [Run] runs one to its end.
//
//   - A child ends when its parent does, kill -9 included. On Linux the kernel kills it.
//     Elsewhere it has to call [Tie]: its standard input is a pipe that only the parent
//     holds open.
//   - It leads a process group of its own, so that a Ctrl-C at the terminal reaches the
//     parent only. On Linux, what it leaves of its group is killed. With Cmd.Group the whole
//     group ends with the parent, and not only the child.
//   - Its output is read until it has ended, and the last lines of its log are kept for errors.
package proc

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// HelloFD is the descriptor of a child on which it announces itself, see [Cmd.Hello].
	HelloFD = 3
	// tailLines is how many lines of a child's log are kept for errors.
	tailLines = 15
	// maxLine is where a line without an end is cut in two, in bytes: a child that prints no
	// newlines must not fill the parent's memory. The longest that is parsed is an engine's
	// answer, of some KiB.
	maxLine = 1 << 20
	// outputDelay bounds how long a child's output is read after its end. Only a process that
	// has left the child's group can hold the output open for so long.
	outputDelay = 5 * time.Second
	// lookPeriod is how often Start looks for a child's Port.
	lookPeriod = 5 * time.Millisecond
)

// ErrKilled is wrapped by the error of a child that got a SIGKILL that its parent did not send.
var ErrKilled = errors.New("somebody else has ended it, or the kernel because memory ran out")

// A Cmd describes a child process.
type Cmd struct {
	Args  []string             // program, looked up in PATH, and arguments
	Env   []string             // the whole environment; the parent's if nil
	Dir   string               // working directory; the parent's if empty
	Files []*os.File           // inherited, from descriptor 3, or 4 with Hello
	Sys   *syscall.SysProcAttr // what else is asked of the kernel; Start adds to it

	// Namespace is a descriptor of the network namespace that the child runs in, on Linux.
	// Zero is the parent's.
	Namespace int

	// Start returns once the child has announced itself, if one of these is set: by a line on
	// HelloFD; by a line of its log that begins with Announce; or by a socket that listens on
	// the TCP port Port in its network namespace, which only Linux shows.
	Hello    bool
	Announce string
	Port     int

	// Group has the child's whole process group killed when the parent ends, kill -9 included:
	// a shell beside the child waits for that. Without Group, what the child has started
	// outlives a parent that is killed. On Linux, Group also gives what the child leaves of its
	// group until the end of Grace, if the parent has asked for the end, before it is killed. A
	// process that has left the group, as setsid has it do, is not found in either case.
	Group bool

	// Log gets the child's standard error, and its standard output unless Out gets that.
	// Each gets one Write a line, from one goroutine, and may be nil. Its errors are
	// ignored, since a full disk must not end the child.
	Log, Out io.Writer

	// Stop is the signal by which the method Stop asks the child to end; if it is 0, the
	// method closes the child's standard input instead. Grace is how long the child then
	// has until it is killed.
	Stop  syscall.Signal
	Grace time.Duration
}

// A Proc is a child process that Start has started. Its methods may be called from any
// goroutine.
type Proc struct {
	Hello string   // the line with which the child announced itself, if it did by one
	In    *os.File // writes to the child's standard input, and is closed at the child's end

	c       Cmd
	cmd     *exec.Cmd
	hello   chan string    // has room for one
	reading sync.WaitGroup // reads HelloFD
	asked   atomic.Bool    // the parent has sent a signal
	watcher *watcher       // nil without Group
	kills   int64          // oomKills before the start
	mu      sync.Mutex
	tail    []string
	done    chan struct{} // closed after status is set
	status  error
}

// Start starts a child. ctx bounds the start only. If ctx ends before the child has
// announced itself, or the child does, the child is killed, and the error has the last
// lines of its log.
func Start(ctx context.Context, c Cmd) (*Proc, error) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	p := &Proc{c: c, cmd: cmd, kills: oomKills(), hello: make(chan string, 1), done: make(chan struct{})}
	cmd.Env, cmd.Dir, cmd.ExtraFiles, cmd.WaitDelay = c.Env, c.Dir, c.Files, outputDelay
	cmd.SysProcAttr = cmp.Or(c.Sys, &syscall.SysProcAttr{})
	cmd.SysProcAttr.Setpgid = true
	log := &lines{emit: p.note}
	out := log // one pipe, which keeps the order of both
	if c.Out != nil {
		out = &lines{emit: func(line []byte) { _, _ = c.Out.Write(line) }}
	}
	cmd.Stdout, cmd.Stderr = out, log
	in, life, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	cmd.Stdin, p.In = in, life
	if c.Hello {
		r, w, err := os.Pipe()
		if err != nil {
			life.Close()
			return nil, err
		}
		defer w.Close()
		cmd.ExtraFiles = slices.Concat([]*os.File{w}, c.Files)
		p.reading.Go(func() {
			defer r.Close()
			if line, err := bufio.NewReader(r).ReadString('\n'); err == nil {
				p.hello <- line
			}
		})
	}
	if c.Group {
		if p.watcher, err = startWatcher(); err != nil {
			life.Close()
			return nil, err
		}
	}
	started := make(chan error, 1)
	go func() {
		// The kernel ties the child to the thread that forks it, so this one has to live as
		// long as the child. It ends with the goroutine, since it may be in another namespace.
		runtime.LockOSThread()
		err := fork(cmd, c.Namespace)
		if err != nil {
			p.watcher.end()
			started <- err
			return
		}
		p.watcher.watch(p.Pid())
		started <- nil
		p.wait(out, log)
	}()
	if err := <-started; err != nil {
		life.Close()
		return nil, err
	}
	if c.Hello {
		cmd.ExtraFiles[0].Close() // the child alone holds it, and so its end is that of the pipe
	}
	if err := p.await(ctx); err != nil {
		p.Kill()
		return nil, p.WithLog(err)
	}
	return p, nil
}

// await returns when the child has announced itself.
func (p *Proc) await(ctx context.Context) error {
	if !p.c.Hello && p.c.Announce == "" && p.c.Port == 0 {
		return nil
	}
	look := time.NewTicker(lookPeriod)
	defer look.Stop()
	for {
		select {
		case p.Hello = <-p.hello:
			return nil
		case <-look.C:
			if p.c.Port != 0 && listens(p.Pid(), p.c.Port) {
				return nil
			}
		case <-p.done:
			if len(p.hello) > 0 {
				p.Hello = <-p.hello
				return nil
			}
			return p.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// wait returns when the child has ended and its output is read.
func (p *Proc) wait(out, log *lines) {
	defer close(p.done)
	endGroup(p.Pid(), func() time.Duration {
		if p.c.Group && p.asked.Load() {
			return p.c.Grace
		}
		return 0
	})
	p.watcher.end() // before the child's number may be another group's
	err := p.cmd.Wait()
	p.In.Close()
	out.flush()
	log.flush()
	p.reading.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && !p.asked.Load() && status.Signaled() && status.Signal() == syscall.SIGKILL {
		err = fmt.Errorf("%w: %w", err, killed(oomKills()-p.kills))
	}
	p.status = err
}

// Run runs a child to its end, and stops it when ctx ends. The child's standard input is
// empty. An error has the last lines of the child's log.
func Run(ctx context.Context, c Cmd) error {
	p, err := Start(ctx, c)
	if err != nil {
		return err
	}
	p.In.Close()
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.Stop() // its end is returned below
	}
	return p.WithLog(p.Wait())
}

// Pid returns the child's process id, also after its end, when another process may have it.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the child has ended and its output is read.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Wait waits for the child's end and returns its exit status or signal as an error, nil for
// status 0.
func (p *Proc) Wait() error {
	<-p.done
	return p.status
}

// Err returns why the child has ended by itself, even with exit status 0. It is nil while
// the child runs, and once the parent has called Stop, Kill or Signal on it.
func (p *Proc) Err() error {
	if !p.ended() || p.asked.Load() {
		return nil
	}
	return fmt.Errorf("ended by itself: %w", cmp.Or(p.status, errors.New("exit status 0")))
}

func (p *Proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Signal sends a signal to the child's group, if the child runs, and does not wait. A signal
// 0 only marks the child's end as asked for.
func (p *Proc) Signal(s syscall.Signal) {
	p.asked.Store(true)
	if !p.ended() {
		_ = syscall.Kill(-p.Pid(), s)
	}
}

// Kill kills the child and its group, and returns when the child has ended.
func (p *Proc) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop asks the child to end, as its Cmd says, kills it after the Cmd's Grace, and returns
// when it has ended. The error is Err's if the child had ended before, or else says that
// the child had to be killed.
func (p *Proc) Stop() error {
	if p.ended() {
		return p.Err()
	}
	if p.Signal(p.c.Stop); p.c.Stop == 0 {
		p.In.Close()
	}
	grace := time.NewTimer(p.c.Grace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-grace.C:
		p.Kill()
		return fmt.Errorf("did not end within %v and was killed", p.c.Grace)
	}
}

// note takes a line of the child's log.
func (p *Proc) note(line []byte) {
	if p.c.Announce != "" && bytes.HasPrefix(line, []byte(p.c.Announce)) {
		select {
		case p.hello <- string(line):
		default: // a later line that begins so
		}
	}
	if text := strings.TrimRight(string(line), " \t\r\n"); text != "" {
		p.mu.Lock()
		p.tail = append(p.tail, text)
		p.tail = p.tail[max(0, len(p.tail)-tailLines):]
		p.mu.Unlock()
	}
	if p.c.Log != nil {
		_, _ = p.c.Log.Write(line)
	}
}

// Tail returns the last lines of the child's log, without empty ones.
func (p *Proc) Tail() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tail)
}

// WithLog returns err with the last lines of the child's log, and nil for nil.
func (p *Proc) WithLog(err error) error {
	if tail := p.Tail(); err != nil && len(tail) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(strings.Join(tail, "\n")))
	}
	return err
}

// lines calls emit with each line that is written to it, with its newline. It is used by one
// goroutine at a time. emit must not keep the line.
type lines struct {
	emit func(line []byte)
	line []byte
}

func (l *lines) Write(b []byte) (int, error) {
	for part := range bytes.Lines(b) {
		l.line = append(l.line, part...)
		if part[len(part)-1] == '\n' || len(l.line) >= maxLine {
			l.flush()
		}
	}
	return len(b), nil
}

// flush emits a last line that has no newline.
func (l *lines) flush() {
	if len(l.line) > 0 {
		l.emit(l.line)
		l.line = l.line[:0]
	}
}

// Lines is a Log or Out of a Cmd. It is called with each line, without its line ending.
type Lines func(line string)

// Write implements io.Writer.
func (f Lines) Write(line []byte) (int, error) {
	f(strings.TrimRight(string(line), "\r\n"))
	return len(line), nil
}

// Announce writes hello, as a line of JSON, to the parent that has started this process with
// Cmd.Hello. fd is HelloFD there. It is called once.
func Announce(fd int, hello any) error {
	f := os.NewFile(uintptr(fd), "announce")
	return errors.Join(json.NewEncoder(f).Encode(hello), f.Close())
}

// Tie has this process exit with status 1 when its standard input ends, which in a child
// means that the parent is gone or has closed Proc.In.
func Tie() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
}
