package topology

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// Bind has memory that was not touched yet come from a location: the pages of cpu:1
// from NUMA node 1. Any is anywhere. mem is mmap'd, whole pages. Pages that are there
// already, as huge ones are, move there; those to come must come from that node, and where it has none
// left the kernel ends a process rather than take others (mbind(2), MPOL_BIND): memory
// that is silently elsewhere would spoil what is measured.
func Bind(mem []byte, location string) error {
	if location == Any || len(mem) == 0 {
		return nil
	}
	node, err := nodeOf(location)
	if err != nil {
		return err
	}
	const bind, strict, move = 2, 1, 2 // MPOL_BIND, MPOL_MF_STRICT, MPOL_MF_MOVE
	var mask [1024 / 64]uint64
	mask[node/64] = 1 << (node % 64)
	// The kernel takes one off maxnode, hence the 1 on top of the mask's bits.
	_, _, errno := syscall.Syscall6(syscall.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)),
		bind, uintptr(unsafe.Pointer(&mask)), uintptr(len(mask)*64+1), strict|move)
	if errno == 0 {
		return nil
	}
	nodes, _ := os.ReadFile("/sys/devices/system/node/online") // none: a kernel without NUMA
	return unbound(location, node, errno, strings.TrimSpace(string(nodes)))
}

// unbound is the error of memory that mbind has not placed on a node, of a machine that has these: "0-1".
func unbound(location string, node int, errno syscall.Errno, nodes string) error {
	switch errno {
	case syscall.EIO:
		return fmt.Errorf("%q: memory that is elsewhere cannot move there: if it is on huge pages, set so many aside on that NUMA node (/sys/devices/system/node/node%d/hugepages)", location, node)
	case syscall.EINVAL:
		return fmt.Errorf("%q: this machine has no such NUMA node, or it has no memory: kvferry rail topo shows which there are", location)
	case syscall.ENOSYS, syscall.EPERM:
		if node == 0 && (nodes == "" || nodes == "0") {
			return nil // there is no other
		}
	}
	return fmt.Errorf("%q: memory cannot be placed there: mbind: %w: a container may need CAP_SYS_NICE for that; or leave the location out", location, errno)
}
