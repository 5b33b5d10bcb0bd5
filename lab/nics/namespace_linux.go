package nics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A namespace is a network namespace without a name. It lives as long as something
// refers to it: this descriptor, a process in it, a socket.
//
// The Handle is its netlink socket, which was opened in there and stays there: requests
// through it need no thread inside. Once it is closed, the package would open one in the
// caller's own namespace instead, so none may follow close.
type namespace struct {
	fd netns.NsHandle
	*netlink.Handle
}

// onThread runs fn on a thread of its own network namespace, from which it may go
// elsewhere. A thread that cannot come back is not used again: it stays locked to its
// goroutine, and the runtime ends it with that. fn may end its goroutine, as t.FailNow does.
func onThread(fn func(home netns.NsHandle) error) error {
	result := make(chan error, 1)
	go func() {
		err := errors.New("the goroutine was ended") // by Goexit, in fn
		defer func() { result <- err }()
		runtime.LockOSThread()
		home, failed := netns.Get()
		if failed != nil {
			err = failed
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
		}()
		err = fn(home)
	}()
	return <-result
}

// newNamespace makes an empty one, with lo up, for the caller to close. Its thread goes back to
// where it was: the namespace lives on by its descriptor.
func newNamespace() (n namespace, err error) {
	err = onThread(func(netns.NsHandle) (err error) {
		n.fd, err = netns.New()
		if errors.Is(err, unix.EPERM) {
			err = errors.New("may not make network namespaces: run as root (or with CAP_SYS_ADMIN and CAP_NET_ADMIN)")
		}
		return err
	})
	if err != nil {
		return n, err
	}
	if n.Handle, err = netlink.NewHandleAt(n.fd, unix.NETLINK_ROUTE, unix.NETLINK_GENERIC); err != nil {
		n.fd.Close()
		return n, fmt.Errorf("netlink: %w", err)
	}
	lo, err := n.LinkByName("lo")
	if err == nil {
		err = n.LinkSetUp(lo)
	}
	if err != nil {
		n.close()
		return n, fmt.Errorf("lo: %w", err)
	}
	return n, nil
}

func (n namespace) close() {
	n.Handle.Close()
	n.fd.Close()
}

// do runs fn on a thread in the namespace. Sockets and files of /proc/sys/net that fn opens
// belong to the namespace for as long as they are open.
func (n namespace) do(fn func() error) error {
	return onThread(func(netns.NsHandle) error {
		if err := netns.Set(n.fd); err != nil {
			return fmt.Errorf("setns: %w", err)
		}
		return fn()
	})
}

// A sysctl is a setting of a network namespace, its name below /proc/sys/net. One that this
// kernel was built without needs no value.
type sysctl struct{ name, value string }

func (n namespace) set(all ...sysctl) error {
	return n.do(func() error {
		for _, s := range all {
			file := path.Join("/proc/sys/net", s.name)
			if err := os.WriteFile(file, []byte(s.value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}
