package nics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"kvferry/internal/proc"
	"kvferry/lab"
)

// A host runs a command. It is over when its first process has reported the
// command's exit status, or has ended without that.
type host struct {
	number  int
	first   *proc.Proc
	killed  atomic.Bool // by a fault
	control *os.File    // the lines of fdControl

	ready chan struct{} // closed: waits to be let off
	over  chan struct{} // closed: the fields below are set
	code  int
	err   error

	following sync.WaitGroup
}

// startHost starts a host's first process in the host's namespaces, and tells it its job.
// It does not wait for it. out stays the caller's. print gets the command's lines from two
// goroutines.
func (n *network) startHost(number int, out *folder, print func(lab.Line)) (*host, error) {
	path, err := exec.LookPath(n.cfg.Command[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, err
	}
	control, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	h := &host{number: number, control: control, ready: make(chan struct{}), over: make(chan struct{})}
	printed := func(stderr bool) io.Writer {
		return proc.Lines(func(text string) { print(lab.Line{Host: number, Stderr: stderr, Text: text}) })
	}
	h.first, err = proc.Start(context.Background(), proc.Cmd{
		Args: []string{"/proc/self/exe", initName, hostname(number)}, Files: []*os.File{theirs, out.file}, Out: printed(false), Log: printed(true),
		Namespace: int(n.hosts[number-1].fd),
		// Namespaces of a child have to be asked for when it is made: a Go process has many
		// threads, and only one of them would be in what unshare(2) makes.
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS},
	})
	if err != nil {
		control.Close()
		return nil, fmt.Errorf("starting %s: %w", hostname(number), err)
	}
	h.following.Go(func() {
		h.code, h.err = lab.FollowInit(control, hostname(number), h.ready)
		close(h.over)
	})
	text, err := json.Marshal(job{hostname(number), path, n.cfg.Command, n.cfg.environment(number, out.path)})
	if err == nil {
		_, err = h.first.In.Write(append(text, '\n'))
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("starting %s: %w", hostname(number), err)
	}
	return h, nil
}

// Tell sends the first process a word: go starts the command, stop ends it.
func (h *host) Tell(word string) { _, _ = io.WriteString(h.first.In, word+"\n") }

// kill ends all processes of the host: the kernel kills those of a PID namespace with its
// first. It does not wait for that.
func (h *host) kill() { h.first.Signal(syscall.SIGKILL) }

// close kills the host, and returns when its last process is gone and its output
// has been printed. It is called once.
func (h *host) close() {
	h.first.Kill()
	h.following.Wait()
	h.control.Close()
}

// A folder is a host's KVFERRY_LAB_OUT.
type folder struct {
	file *os.File
	path string // for the host's processes
}

// openFolder makes it below dir, or in memory, in a file system that is mounted
// nowhere: it goes with its last descriptor, and so with the host. A folder in
// /tmp would be left behind by kill -9. fsopen(2) takes Linux 5.2.
func openFolder(dir string, host int) (*folder, error) {
	if dir != "" {
		path, err := filepath.Abs(filepath.Join(dir, hostname(host)))
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
		if err != nil {
			return nil, err
		}
		f, err := os.Open(path)
		return &folder{f, path}, err
	}
	fsfd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return &folder{os.NewFile(uintptr(fd), outInMemory), outInMemory}, nil
}

// create makes a file in the folder, or empties it. The host's processes may write there
// too: O_APPEND keeps whole what each writes at once.
func (f *folder) create(name string) (*os.File, error) {
	fd, err := unix.Openat(int(f.file.Fd()), name, unix.O_CREAT|unix.O_TRUNC|unix.O_APPEND|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", name, f.path, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (f *folder) close() { f.file.Close() }

// monotonic is CLOCK_MONOTONIC in nanoseconds, which all hosts and this process share: no
// time namespace is made. It is 0 where it cannot be read.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return now.Nano()
}

// Check reports why no lab can be had here, in one line, or nil.
func Check() error {
	ns, err := newNamespace()
	if err != nil {
		return err
	}
	ns.close()
	return nil
}
