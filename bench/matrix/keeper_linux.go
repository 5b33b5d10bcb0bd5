package matrix

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// The program's name in parentheses may hold anything; state, parent and group follow.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if fields[1] == self && pid != command && fields[2] != strconv.Itoa(command) && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}
