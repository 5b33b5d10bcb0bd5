package proc

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// A watcher is a shell that kills a process group when this process ends. It reads the
// group's number and then waits for the end of its standard input, whose other end only this
// process holds. It is in a group of its own, so that a signal for the child does not reach it.
type watcher struct {
	cmd  *exec.Cmd
	life io.WriteCloser
}

// startWatcher starts a watcher without a group. It is started before the child, so that as
// little time as possible passes between the child's start and the call of watch.
func startWatcher() (*watcher, error) {
	const script = `read -r group && { read -r _; kill -s KILL -- "-$group"; }`
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("watcher of a process group: %w", err)
	}
	return &watcher{cmd, life}, nil
}

// watch has the watcher kill the group when this process ends. It does nothing for nil.
func (w *watcher) watch(group int) {
	if w != nil {
		_, _ = fmt.Fprintln(w.life, group) // it fails if somebody has killed the watcher
	}
}

// end ends the watcher and spares the group. It does nothing for nil.
func (w *watcher) end() {
	if w != nil {
		_ = w.cmd.Process.Kill() // it fails if somebody else has
		_ = w.cmd.Wait()
	}
}
