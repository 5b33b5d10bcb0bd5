//go:build cgo

package rdma

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"
)

// library opens libibverbs, once: a rail is the first that needs it.
var library = sync.OnceValue(func() error { return load("libibverbs.so.1") })

// load opens a file that has the calls of libibverbs.
func load(file string) error {
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	var why [256]C.char
	rc := C.kv_load(name, &why[0], C.size_t(len(why)))
	if rc == 0 {
		return nil
	}
	remedy := "install it (apt-get install libibverbs1 ibverbs-providers)"
	if rc == C.KV_TOO_OLD {
		remedy = "install that of rdma-core 32 or later"
	}
	return fmt.Errorf("%w: %s: %s", ErrNoVerbs, C.GoString(&why[0]), remedy)
}
