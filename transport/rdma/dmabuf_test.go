//go:build cgo && linux

package rdma

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport"
	"kvferry/transport/transporttest"
)

// udmabuf is a dma-buf of a memfd's pages, which the kernel makes.
func udmabuf(t *testing.T, size int) (fd int, mem []byte) {
	t.Helper()
	dev, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	defer dev.Close()
	f, mem := transporttest.Memfd(t, size)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	create := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{memfd: uint32(f.Fd()), flags: 1, size: uint64(size)}
	const udmabufCreate = 0x40187542
	made, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), udmabufCreate, uintptr(unsafe.Pointer(&create)))
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { _ = unix.Close(int(made)) })
	return int(made), mem
}

// TestVerbsDMABuf moves bytes from one real dma-buf to another, over the device that KVFERRY_RDMA names; or
// that refuses them, with what says so.
func TestVerbsDMABuf(t *testing.T) {
	device := os.Getenv("KVFERRY_RDMA")
	if device == "" {
		t.Skip("KVFERRY_RDMA names no device: make test-roce runs this on software RoCE")
	}
	r, err := New(Config{Name: "rdma/" + device, Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	e, err := transport.New(transport.Config{Rails: []transport.Rail{r}, Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	const at, n = 5000, 20_000
	var segments [2]*transport.Segment
	var files [2][]byte
	for i := range segments {
		var fd int
		fd, files[i] = udmabuf(t, 32<<10)
		mem, release, err := transport.ReserveDMABuf(fd, at, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = release() })
		segments[i], err = e.Register("dma", mem, "cpu:0")
		if errors.Is(err, syscall.EOPNOTSUPP) {
			t.Logf("NOT PROMISED: %s registers no dma-bufs: %v", device, err)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	target, err := e.Open(segments[1].Info())
	if err != nil {
		t.Fatal(err)
	}
	for op, from := range []int{transport.Write: 0, transport.Read: 1} {
		copy(files[from][at:], bytes.Repeat([]byte{byte(op + 1)}, n))
		b := e.Submit(target, []transport.Request{{Op: transport.Op(op), Local: segments[0].Bytes()}}, transport.BatchOptions{Timeout: time.Minute})
		if <-b.Done(); b.Err() != nil || !bytes.Equal(files[0][at:at+n], files[1][at:at+n]) {
			t.Errorf("%v: %v", transport.Op(op), b.Err())
		}
	}
}
