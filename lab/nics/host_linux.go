package nics

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"kvferry/lab"
)

// A host runs a command. It is over when its first process has reported the
// command's exit status, or has ended without that.
type host struct {
	number  int
	process *os.Process
	exited  <-chan error // one value, of the process's Wait; close takes it
	killed  atomic.Bool  // by a fault
	control net.Conn     // the lines of fdControl; its end ends the first process

	ready chan struct{} // closed: waits to be let off
	over  chan struct{} // closed: the fields below are set
	code  int
	err   error

	readers sync.WaitGroup
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
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer theirs.Close()
	control, err := net.FileConn(ours)
	ours.Close() // FileConn has a duplicate
	if err != nil {
		return nil, err
	}
	h := &host{number: number, control: control, ready: make(chan struct{}), over: make(chan struct{})}
	var outputs [2]struct{ ours, theirs *os.File }
	for i := range outputs {
		o := &outputs[i]
		if o.ours, o.theirs, err = os.Pipe(); err != nil {
			break
		}
		defer o.theirs.Close()
	}
	// Namespaces of a child have to be asked for when it is made: a Go process has many
	// threads, and only one of them would be in what unshare(2) makes.
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{initName, hostname(number)},
		Stdout: outputs[0].theirs, Stderr: outputs[1].theirs, ExtraFiles: []*os.File{theirs, out.file},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS,
			Pdeathsig:  syscall.SIGKILL, Setsid: true,
		},
	}
	if err == nil {
		h.exited, err = n.hosts[number-1].start(cmd)
	}
	if err != nil {
		control.Close()
		for _, o := range outputs {
			if o.ours != nil {
				o.ours.Close()
			}
		}
		return nil, fmt.Errorf("starting %s: %w", hostname(number), err)
	}
	h.process = cmd.Process
	for i, o := range outputs {
		h.readers.Go(func() {
			defer o.ours.Close()
			lab.ReadLines(o.ours, "", func(text string) { print(lab.Line{Host: number, Stderr: i == 1, Text: text}) })
		})
	}
	h.readers.Go(h.follow)
	text, err := json.Marshal(job{hostname(number), path, n.cfg.Command, n.cfg.environment(number, out.path)})
	if err == nil {
		_, err = h.control.Write(append(text, '\n'))
	}
	if err != nil {
		h.close()
		return nil, fmt.Errorf("starting %s: %w", hostname(number), err)
	}
	return h, nil
}

// start starts a process in the namespace that the kernel kills when this one ends,
// however that is (if cmd says so by its Pdeathsig). The kernel ties it to the thread that
// forked it, so a thread is kept for as long as the process lives. exited gets one value
// when the process has ended, which may be left unread; after an error it gets none.
func (ns namespace) start(cmd *exec.Cmd) (exited <-chan error, err error) {
	started, over := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread stays in the namespace, and ends with the goroutine
		err := unix.Setns(int(ns.fd), unix.CLONE_NEWNET)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			over <- cmd.Wait()
		}
	}()
	return over, <-started
}

// follow reads what the first process says, to the end. It alone writes code and err, and
// closes over.
func (h *host) follow() {
	reported := false
	lines := bufio.NewScanner(h.control)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch {
		case word == "ready":
			close(h.ready)
		case word == "fail" && !reported:
			h.err = fmt.Errorf("%s: %s", hostname(h.number), rest)
		case word == "exit" && !reported:
			h.code, h.err = strconv.Atoi(rest)
			reported = true
			close(h.over)
		}
	}
	if !reported {
		h.err = cmp.Or(h.err, fmt.Errorf("%s died without reporting an exit status", hostname(h.number)))
		close(h.over)
	}
}

// Tell sends the first process a word: go starts the command, stop ends it.
func (h *host) Tell(word string) { _, _ = io.WriteString(h.control, word+"\n") }

// kill ends all processes of the host: the kernel kills those of a PID namespace with its
// first. It does not wait for that.
func (h *host) kill() { _ = h.process.Kill() }

// close kills the host, and returns when its last process is gone and its output
// has been printed. It is called once.
func (h *host) close() {
	h.kill()
	<-h.exited
	h.control.Close()
	h.readers.Wait()
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
