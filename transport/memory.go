package transport

import (
	"kvferry/transport/descriptor"
	"kvferry/transport/pages"
)

// An Allocator makes memory for segments: size bytes, at least one, that are all zero and
// stay where they are until release, which gives them back and is called once, after the
// Close of every segment over them. The memory must be one that the engine's rails can
// use: rails over sockets take any that this process can read and write, RDMA pins what it
// is given.
//
// [MapMemory] is the one to use if nothing else is asked for. Others return memory that
// somebody shares (memfd_create and mmap), huge pages that were set aside (MAP_HUGETLB),
// or the host memory that a GPU copies from at full speed (cudaHostAlloc).
type Allocator func(size int) (mem []byte, release func() error, err error)

// MapMemory is an [Allocator] of private memory outside the Go heap, from which no garbage
// collector looks for pointers, and which an RDMA device may keep the address of. It takes
// address space only: a page is taken when it is first touched, and topology.Bind says
// before that which NUMA node it comes from. A second call of release does nothing.
func MapMemory(size int) (mem []byte, release func() error, err error) { return pages.Map(size) }

// MapFile maps a part of a memfd, to be registered: the peers of a rail over shared memory map it too, whoever made it. The
// offset need not be aligned. The memfd is sealed against shrinking (F_SEAL_SHRINK), and ErrInvalid if it cannot be. fd may
// be closed at once. The memory is the caller's until release, as an [Allocator]'s is.
func MapFile(fd int, offset int64, length int) (mem []byte, release func() error, err error) {
	return descriptor.Map(fd, offset, length)
}

// ReserveDMABuf has addresses for a part of a dma-buf, a GPU's memory (CUDA: cuMemGetHandleForAddressRange), to be registered.
// They name its bytes in requests and must not be touched. Rails that are a [DMABufRail] move them; the others carry
// the segment's immediates and nothing else. fd may be closed at once. release is called as an [Allocator]'s.
func ReserveDMABuf(fd int, offset int64, length int) (mem []byte, release func() error, err error) {
	return descriptor.Reserve(fd, offset, length)
}

// A DMABufRail is a rail that moves memory which is not mapped, by its descriptor.
type DMABufRail interface {
	// RegisterDMABuf is Register of addresses whose first stands for the byte of a dma-buf at an offset. Slices
	// have Local memory there, which the rail must not touch. fd stays open until Deregister or Close returns.
	RegisterDMABuf(mem []byte, fd int, offset int64, access Access) (Key, error)
}

// moves says whether a rail can move memory of a descriptor, or of none; dma is how, if it is not mapped.
func moves(r Rail, m *descriptor.Memory) (dma DMABufRail, ok bool) {
	if m == nil || m.Mapped {
		return nil, true
	}
	dma, ok = r.(DMABufRail)
	return dma, ok
}
