package lab

import (
	"archive/tar"
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"kvferry/internal/proc"
)

// A host is one QEMU. It is over when its command has reported its exit status
// and all of its output is here, or when the process has ended without that.
type host struct {
	number int
	qemu   *proc.Proc  // nil if it did not start
	killed atomic.Bool // by a fault

	control net.Conn
	conns   []net.Conn // our ends of all that QEMU talks through, control among them
	console tail       // the guest kernel's

	monitor     *monitor
	monitorErr  error
	monitorOpen chan struct{} // closed: the two above are set

	ready chan struct{} // closed: waits to be let off
	over  chan struct{} // closed: the fields below are set
	code  int
	err   error

	readers sync.WaitGroup // they end when conns are closed
}

func (h *host) Name() string { return hostname(h.number) }

func (h *host) Over() <-chan struct{} { return h.over }

func (h *host) Ended() (code int, killed bool, err error) {
	if h.err != nil {
		err = h.died()
	}
	return h.code, h.killed.Load(), err
}

// died is the error of a host that is over and should not be.
func (h *host) died() error {
	if h.console.find("Kernel panic") != "" {
		return fmt.Errorf("%w: %w; %s", ErrPanic, h.err, h.postMortem())
	}
	return fmt.Errorf("%w; %s", h.err, h.postMortem())
}

// startHost boots a host, and does not wait for it. It takes over nics, its ends of the
// wires, also when it fails; initrd stays the caller's. print gets the command's lines
// from two goroutines.
func (c Config) startHost(number int, img image, initrd *os.File, nics []*os.File, token string, print func(Line)) (*host, error) {
	h := &host{number: number, monitorOpen: make(chan struct{}), ready: make(chan struct{}), over: make(chan struct{})}
	ch, err := c.boot(h, img, initrd, nics)
	if err != nil {
		h.close()
		return nil, err
	}
	h.control = ch.ports[portControl]
	h.readers.Go(func() { _, _ = io.Copy(&h.console, ch.console) })
	h.readers.Go(func() {
		h.monitor, h.monitorErr = openMonitor(ch.monitor)
		close(h.monitorOpen)
	})
	c.follow(h, ch.ports, token, print)
	return h, nil
}

// channels are our ends of what QEMU talks through. They are in the host's conns too, for
// its close.
type channels struct {
	console, monitor net.Conn
	ports            map[int]net.Conn
}

// boot starts QEMU. It inherits the initrd, the wires' ends and its ends of the channels, and
// they are closed here: but for the initrd, which is for all hosts.
func (c Config) boot(h *host, img image, initrd *os.File, nics []*os.File) (channels, error) {
	var files []*os.File // what QEMU inherits, from descriptor 3
	inherit := func(f *os.File) int {
		files = append(files, f)
		return 2 + len(files)
	}
	fd := descriptors{initrd: inherit(initrd), ports: make(map[int]int)}
	for _, f := range nics {
		fd.nics = append(fd.nics, inherit(f))
	}
	defer func() {
		for _, f := range files[1:] {
			f.Close()
		}
	}()
	open := func() (net.Conn, int, error) {
		ours, theirs, err := channel()
		if err != nil {
			return nil, 0, err
		}
		h.conns = append(h.conns, ours)
		return ours, inherit(theirs), nil
	}
	ch := channels{ports: make(map[int]net.Conn)}
	var errs [2]error
	ch.console, fd.console, errs[0] = open()
	ch.monitor, fd.monitor, errs[1] = open()
	err := errors.Join(errs[:]...)
	for port := portControl; port <= portOut && err == nil; port++ {
		ch.ports[port], fd.ports[port], err = open()
	}
	if err != nil {
		return ch, err
	}
	h.qemu, err = proc.Start(context.Background(), proc.Cmd{Args: append([]string{qemuProgram}, c.qemuArgs(h.number, img.kernel, fd)...), Files: files})
	return ch, err
}

// follow reads what a host says on its ports, and closes over when it has said all.
func (c Config) follow(h *host, ports map[int]net.Conn, token string, print func(Line)) {
	// Each stream is read beyond the end that the protocol marks: a process that the
	// command left running would block on it otherwise. What the streams find out is in
	// variables that are read once all have ended.
	var streams sync.WaitGroup
	stream := func(port int, read func(in io.Reader)) {
		streams.Add(1)
		h.readers.Go(func() {
			read(ports[port])
			streams.Done()
			_, _ = io.Copy(io.Discard, ports[port])
		})
	}
	var whole [2]bool
	var err, outErr error
	stream(portControl, func(in io.Reader) { h.code, err = FollowInit(in, h.Name(), h.ready) })
	for i, port := range []int{portStdout, portStderr} {
		stream(port, func(in io.Reader) {
			whole[i] = readLines(in, token, func(text string) { print(Line{h.number, port == portStderr, text}) })
		})
	}
	if c.Out != "" {
		stream(portOut, func(in io.Reader) { outErr = extract(in, filepath.Join(c.Out, hostname(h.number))) })
	}
	h.readers.Go(func() {
		streams.Wait()
		switch {
		case err != nil || !whole[0] || !whole[1]:
			h.err = cmp.Or(err, errDied(h.Name()))
		case outErr != nil:
			h.err = fmt.Errorf("files of %s: %w", hostname(h.number), outErr)
		}
		close(h.over)
	})
}

// FollowInit reads what a host's init says (see portControl), closes ready when the host waits
// to be let off, and returns the exit status of its command.
func FollowInit(in io.Reader, host string, ready chan<- struct{}) (code int, err error) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "ready":
			close(ready)
		case "fail":
			return 0, fmt.Errorf("%s could not be set up: %s", host, rest)
		case "exit":
			return strconv.Atoi(rest)
		}
	}
	return 0, errDied(host)
}

func errDied(host string) error {
	return fmt.Errorf("%s died without reporting an exit status", host)
}

// Tell sends the host's init a word: go starts the command, stop ends it.
func (h *host) Tell(word string) { _, _ = io.WriteString(h.control, word+"\n") }

// kill is a power cut: SIGKILL for QEMU, which leaves its guest no time to send
// anything. It does not wait for the process's end, and may be called after it.
func (h *host) kill() { h.qemu.Signal(syscall.SIGKILL) }

// setLink waits for QEMU's start and for its answer. A host's end ends both waits.
func (h *host) setLink(nic int, up bool) error {
	<-h.monitorOpen
	if h.monitorErr != nil {
		return h.monitorErr
	}
	return h.monitor.setLink(nic, up)
}

// close ends the process, if it runs, and returns when it and its readers have ended. It
// is called once.
func (h *host) close() {
	if h.qemu != nil {
		h.qemu.Kill()
	}
	for _, c := range h.conns {
		c.Close()
	}
	h.readers.Wait()
}

// postMortem is what the host said last, for an error.
func (h *host) postMortem() string {
	text := "its console ends with\n"
	// What a panic is about comes long before its last line.
	if cause := h.console.find("Kernel panic"); cause != "" {
		text += "\t" + cause + "\n\t...\n"
	}
	text += h.console.last(25)
	if said := h.qemu.Tail(); len(said) > 0 {
		text += "\nQEMU says\n\t" + strings.Join(said, "\n\t")
	}
	return text
}

// extract unpacks a tar archive into folder. Nothing in it can leave the folder, by "..",
// by an absolute name or by a symlink: the host may run a program that nobody has looked
// at. Folders and files are kept, all other kinds left out.
func extract(in io.Reader, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer root.Close()
	archive := tar.NewReader(in)
	for {
		head, err := archive.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		name := filepath.Clean(head.Name)
		switch head.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg: // whose folder an archive need not have
			err = root.MkdirAll(filepath.Dir(name), 0o755)
			if err == nil {
				err = writeFile(root, name, head.FileInfo().Mode().Perm(), archive)
			}
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	// Writable by its owner, so that the next run into the same folder can replace it.
	f, err := root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
