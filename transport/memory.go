package transport

import "kvferry/transport/pages"

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
