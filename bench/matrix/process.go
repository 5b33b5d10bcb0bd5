package matrix

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A process is a command under its keeper. It has one goroutine, which waits for its end and
// closes done. Whoever starts it calls stop and waits for done.
type process struct {
	keeper *exec.Cmd
	life   io.WriteCloser // the keeper ends all when it is written to, or closes
	done   chan struct{}  // closed when nothing of it is left
	end    end            // valid then
}

// A command is what is started: its words, where, with what, and where its output goes.
type command struct {
	words          []string
	dir            string
	env            []string // besides this process's own
	stdout, stderr *os.File
	stop           Stop
	within         time.Duration // what stop.Within is, if that is 0
}

// start runs a command. An error says that there is no keeper; what is wrong with the command
// itself is its end.
func (c command) start() (*process, error) {
	spec, err := json.Marshal(keep{c.words, signals[c.stop.signal()], or(c.stop.Within, c.within)})
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("matrix: %w", err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = c.dir
	cmd.Env = append(append(os.Environ(), c.env...), keeperEnv+"="+string(spec))
	cmd.Stdout, cmd.Stderr = c.stdout, c.stderr
	// A Ctrl-C at the terminal is kvferry's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	said, last, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{last}
	err = cmd.Start()
	last.Close()
	if err != nil {
		said.Close()
		return nil, fmt.Errorf("matrix: %w", err)
	}
	p := &process{keeper: cmd, life: life, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer said.Close()
		err := json.NewDecoder(said).Decode(&p.end)
		if wait := cmd.Wait(); err != nil {
			p.end = end{Code: -1, Error: fmt.Sprintf("its keeper ended: %v", wait)}
		}
	}()
	return p, nil
}

// stop asks for an end, which done tells. It may be called again, and after the end.
func (p *process) stop() {
	_ = p.life.Close() // it may have ended
}
