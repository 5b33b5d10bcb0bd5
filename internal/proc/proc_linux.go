package proc

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fork starts a child that the kernel kills when this thread ends. A namespace other than 0
// is the network namespace that this thread enters for good, and the child with it.
func fork(cmd *exec.Cmd, namespace int) error {
	if namespace != 0 {
		if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
			return os.NewSyscallError("setns", err)
		}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return cmd.Start()
}

// endGroup waits until a child has ended, then as long as grace returns for the rest of its
// group, and kills what is left of it. The child is left to be waited for, so that no other
// process can have its number yet.
func endGroup(pid int, grace func() time.Duration) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	for until := time.Now().Add(grace()); time.Now().Before(until) && populated(pid); {
		time.Sleep(lookPeriod)
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL) // it may be empty
}
