package matrix

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// adopt has the kernel give this process the orphans among its descendants.
func adopt() {
	// Since Linux 3.4. Without it they go to init, and only their group finds them.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// attributes of a command: a group of its own, and an end with its keeper, kill -9 included.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// strays are the children of this process but for the command itself: adopted ones.
func strays(command int) (pids []int) {
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	self := strconv.Itoa(os.Getpid())
	for _, name := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		_, fields := stat(pid)
		if len(fields) <= statGroup {
			continue // it has ended
		}
		if fields[statParent] == self && pid != command && fields[statGroup] != strconv.Itoa(command) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}
