package capi

import (
	"fmt"
	"unsafe"
)

// Structs of the C interface grow at their end. The size that the caller's kvferry.h has for one
// comes with it, as its first field or beside an array, and what one of the two sides does not know is zero:
//
//	caller is older   |known to both|              fields that it does not know are zero, the defaults
//	caller is newer   |known to both|unknown|      must be zero, as the library would not do it

const (
	leastStruct = 8
	mostStruct  = 4096
)

// Read copies a caller's struct whose first field is a uint32, its size. A nil one is all zero.
func Read[T any](from unsafe.Pointer) (to T, err error) {
	if from == nil {
		return to, nil
	}
	size := *(*uint32)(from)
	if size < leastStruct || size > mostStruct {
		return to, invalid("struct_size is %d: set it to the size of the struct", size)
	}
	given := unsafe.Slice((*byte)(from), size)
	for i := int(unsafe.Sizeof(to)); i < len(given); i++ {
		if given[i] != 0 {
			return to, fmt.Errorf("%w: byte %d of a struct of which this library knows %d: the program was compiled with a newer kvferry.h", ErrUnsupported, i, unsafe.Sizeof(to))
		}
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&to)), unsafe.Sizeof(to)), given)
	return to, nil
}

// Write copies a struct into a caller's array at index i, whose elements have another size if the caller's
// kvferry.h is of another version.
func Write[T any](to unsafe.Pointer, i, size int, from *T) {
	element := unsafe.Slice((*byte)(unsafe.Add(to, i*size)), size)
	n := copy(element, unsafe.Slice((*byte)(unsafe.Pointer(from)), unsafe.Sizeof(*from)))
	clear(element[n:])
}

// Slice is a caller's array to be read, of n elements. It is nil if there is none.
func Slice[T any](name string, from unsafe.Pointer, n uint64) ([]T, error) {
	var one T
	switch {
	case from == nil && n > 0:
		return nil, invalid("%s is NULL", name)
	case !inAddressSpace(uint64(uintptr(from)), n, uint64(unsafe.Sizeof(one))):
		return nil, invalid("%s has %d elements", name, n)
	}
	return unsafe.Slice((*T)(from), n), nil
}

// inAddressSpace says that n elements from an address on can be memory.
func inAddressSpace(from, n, size uint64) bool {
	return n <= mostBytes/size && from <= 1<<63-n*size
}

// CheckArray says what is wrong with a caller's array to be written.
func CheckArray(to unsafe.Pointer, size, capacity uint64) error {
	switch {
	case size < leastStruct || size > mostStruct:
		return invalid("elements of %d bytes: give the size of the struct", size)
	case capacity > mostPieces:
		return invalid("an array of %d, at most %d", capacity, mostPieces)
	case to == nil && capacity > 0:
		return invalid("no array")
	}
	return nil
}
