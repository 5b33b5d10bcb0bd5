package process

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Credentials are those of the process that made the other end of a Unix socket, or that listened
// there, as the kernel has them.
type Credentials struct{ PID, UID int }

// Of are the credentials of the other end of a Unix socket. A process of another PID namespace,
// which has no number here, is an error.
func Of(c syscall.Conn) (Credentials, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return Credentials{}, err
	}
	var cred *unix.Ucred
	var failed error
	if err := rc.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return Credentials{}, errors.Join(err, os.NewSyscallError("getsockopt", failed))
	}
	if cred.Pid == 0 {
		return Credentials{}, errors.New("its process is not visible in this PID namespace: run both in one (docker run --pid=host)")
	}
	return Credentials{PID: int(cred.Pid), UID: int(cred.Uid)}, nil
}

// Name is the process at the other end of a Unix socket, if it is of this user, and else the user:
// what has no business here counts as one peer.
func Name(c syscall.Conn) string {
	cred, err := Of(c)
	switch {
	case err != nil:
		return "unknown"
	case cred.UID != os.Getuid():
		return fmt.Sprintf("uid %d", cred.UID)
	}
	return fmt.Sprintf("pid %d", cred.PID)
}

// user is this process's user, as the user namespace around its own knows it: processes of two such namespaces may
// both be user 0, and be strangers.
func user() int {
	uid := os.Getuid()
	ids, _ := os.ReadFile("/proc/self/uid_map")
	for line := range strings.Lines(string(ids)) {
		var inside, outside, n int
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && uid >= inside && uid-inside < n {
			return outside + uid - inside
		}
	}
	return uid
}

// Machine names this machine since it was started, and in it this network namespace and this user: processes with
// one name reach each other over Unix sockets that have no file.
func Machine() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, _ := os.Readlink("/proc/self/ns/net") // net:[4026531840]
	text := strings.TrimSpace(string(boot)) + strings.Trim(strings.TrimPrefix(ns, "net:"), "[]")
	return fmt.Sprintf("%s/%d", strings.ReplaceAll(text, "-", ""), user())
}
