package nics

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A host's first process is this program, with the argument initName, as process 1 of a
// PID namespace: when it ends, the kernel kills all that the command ever started.
// It takes over before main, so that every program with this package in it can
// have hosts.

const initName = "kvferry-lab-host"

// What the first process inherits.
const (
	fdControl = 3 // for its lines: ready, exit STATUS or fail REASON; it reads a job, go and stop from standard input
	fdOut     = 4 // the folder KVFERRY_LAB_OUT
)

// outInMemory is the folder of fdOut for all processes of a host: the path goes
// through the host's own /proc to its process 1.
const outInMemory = "/proc/1/fd/4"

// A job is what a host is for, a line of JSON.
type job struct {
	Hostname  string
	Path      string   // of the program, absolute
	Args, Env []string // Args[0] is the program's name
}

func init() {
	if len(os.Args) == 3 && os.Args[1] == initName && os.Getpid() == 1 {
		os.Exit(beHost())
	}
}

// beHost returns when the lab is over: its end of standard input is closed, by whatever.
func beHost() int {
	// The command inherits neither: it could speak for its host. It reaches the folder by its path in /proc.
	syscall.CloseOnExec(fdControl)
	syscall.CloseOnExec(fdOut)
	control := os.NewFile(fdControl, "control")
	in := bufio.NewReader(os.Stdin)
	fail := func(err error) int {
		fmt.Fprintf(control, "fail %v\n", err)
		return 1
	}
	var j job
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &j)
	}
	if err == nil {
		err = j.settle()
	}
	if err != nil {
		return fail(err)
	}
	fmt.Fprintln(control, "ready")
	if word, err := in.ReadString('\n'); err != nil || word != "go\n" {
		return 1
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return fail(err)
	}
	// A session of its own, for stop to reach all of it.
	pid, err := syscall.ForkExec(j.Path, j.Args, &syscall.ProcAttr{
		Env: j.Env, Files: []uintptr{null.Fd(), 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fail(fmt.Errorf("%s: %w", j.Path, err))
	}
	go reap(pid, func(status int) { fmt.Fprintf(control, "exit %d\n", status) })
	for {
		word, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		if word == "stop\n" {
			_ = syscall.Kill(-pid, syscall.SIGTERM)
		}
	}
}

// reap waits for all processes of the host, whose orphans are process 1's, and reports the
// exit status of the command: 128 plus a signal's number, if one ended it. os/exec is not
// used for the command, since its Wait and this one would take each other's children.
func reap(command int, over func(status int)) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return // none is left, and only the command could have started more
		case pid == command && status.Signaled():
			over(128 + int(status.Signal()))
		case pid == command:
			over(status.ExitStatus())
		}
	}
}

// settle gives the host its name, and file systems that tell of its processes and
// its NICs.
func (j job) settle() error {
	if err := unix.Sethostname([]byte(j.Hostname)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	// Mounts are shared by default where systemd runs, and would show outside.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	// A new sysfs hides what is mounted below the old. The CPU limit of a container is read in
	// here, by the Go runtime too.
	cgroups, noCgroups := unix.Open("/sys/fs/cgroup", unix.O_PATH|unix.O_CLOEXEC, 0)
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	if noCgroups == nil {
		_ = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", cgroups), "/sys/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
		_ = unix.Close(cgroups)
	}
	return nil
}
