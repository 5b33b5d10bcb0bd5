package foreign

import (
	"testing"
	"unsafe"

	"kvferry/transport"
)

// FuzzRequests: whatever a range says, requests lie in the memory, have the bytes asked for, and nothing panics.
func FuzzRequests(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(100), uint64(3), int64(200), int64(-5))
	f.Add(uint64(4000), uint64(1), uint64(1<<63), uint64(1<<19), int64(-1<<63), int64(1<<62))
	f.Add(uint64(1<<63), ^uint64(0), uint64(1), uint64(2), int64(-1), int64(1))
	f.Add(uint64(96), uint64(0), uint64(16), uint64(7), int64(-16), int64(16))
	f.Add(uint64(0), uint64(0), uint64(1<<40), uint64(1<<20), int64(1<<40), int64(1<<40))
	mem := make([]byte, 4096)
	base := uintptr(unsafe.Pointer(&mem[0]))
	regions := []region{{base: base, mem: mem}}
	targets := make([]*transport.Target, 1)
	f.Fuzz(func(t *testing.T, local, remote, length, count uint64, localStride, remoteStride int64) {
		r := Range{Local: base + uintptr(local), Remote: remote, Length: length, Count: count % 4096, LocalStride: localStride, RemoteStride: remoteStride}
		reqs, err := requests(nil, transport.Read, []Range{r}, targets, regions)
		if err != nil {
			return
		}
		bytes := uint64(0)
		for _, q := range reqs {
			at := uintptr(unsafe.Pointer(unsafe.SliceData(q.Local)))
			if at < base || at+uintptr(len(q.Local)) > base+4096 || cap(q.Local) != len(q.Local) {
				t.Fatalf("%+v: %d bytes at %d of 4096", r, len(q.Local), at-base)
			}
			bytes += uint64(len(q.Local))
		}
		if want := length * max(r.Count, 1); bytes != want {
			t.Errorf("%+v: %d bytes, want %d", r, bytes, want)
		}
	})
}
