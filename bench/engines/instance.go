package engines

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// An instance is a process with vLLM, or what stands for one in a test.
type instance struct {
	role  role
	cmd   *exec.Cmd
	in    *os.File
	limit time.Duration // that it may take to read an order
	log   string        // file with what it printed
	stop  chan struct{}
	ended chan struct{} // closed when it is over and all that it said has been told
}

// An arrival is what an instance has said, or that it is over.
type arrival struct {
	from role
	at   time.Time
	event
	over error // why there is nothing more; nil for an event
}

// spec is the first line to a driver.
type spec struct {
	Model       string          `json:"model"`
	DType       string          `json:"dtype"`
	MaxModelLen int             `json:"max_model_len"`
	Core        int             `json:"core"`
	Transfer    json.RawMessage `json:"kv_transfer_config,omitempty"`
	Blocks      int             `json:"blocks,omitempty"` // of KV; 0: as many as vLLM takes
}

// endGrace is how long an instance has to end by itself once its input is closed.
const endGrace = 5 * time.Second

// start starts a process and tells it what it is. What it says goes to arrivals, until it is over or
// ended by end.
func (p place) start(r role, cmd *exec.Cmd, s spec, log string, limit time.Duration, arrivals chan<- arrival) (_ *instance, err error) {
	i := &instance{role: r, cmd: cmd, limit: limit, log: log, stop: make(chan struct{}), ended: make(chan struct{})}
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stderr = file
	orders, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer orders.Close()
	i.in = in
	out, theirs, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, err
	}
	defer theirs.Close()
	cmd.Stdin, cmd.Stdout = orders, theirs
	exited, err := p.exec(r, cmd)
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("%v: %w", r, err)
	}
	go i.follow(out, exited, arrivals)
	return i, i.send(s)
}

// follow tells what the process says.
func (i *instance) follow(out io.ReadCloser, exited <-chan error, arrivals chan<- arrival) {
	defer close(i.ended)
	defer out.Close()
	tell := func(a arrival) {
		a.from, a.at = i.role, time.Now()
		select {
		case arrivals <- a:
		case <-i.stop:
		}
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			e = event{Event: saysError, Text: fmt.Sprintf("it said %.100q", line)}
		}
		tell(arrival{event: e})
	}
	err := cmp.Or(<-exited, errors.New("exit status 0"))
	tell(arrival{over: err})
}

// send writes a line to the process. That it is gone is told by arrivals; it is an error that it does not
// read, once the pipe is full.
func (i *instance) send(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		err = i.in.SetWriteDeadline(time.Now().Add(i.limit))
	}
	if err != nil {
		return err
	}
	if _, err := i.in.Write(append(line, '\n')); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%v does not read its orders within %v", i.role, i.limit)
	}
	return nil
}

// kill kills the process and its group. What it has said is still told, and that it is over.
func (i *instance) kill() { i.signal(syscall.SIGKILL) }

// signal goes to the group, which has been made for the process; it may be over.
func (i *instance) signal(s syscall.Signal) { _ = syscall.Kill(-i.cmd.Process.Pid, s) }

// end ends the process and its group, and returns when it is over.
func (i *instance) end(grace time.Duration) {
	close(i.stop)
	_ = i.in.Close()
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-i.ended:
	case <-t.C:
	}
	i.kill()
	<-i.ended
}

// tail are the last lines of a file, without those that are empty.
func tail(file string, n int) (lines []string) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimRight(line, " \r\n"); line != "" {
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-n):]
}
