package capi

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

// TestRangeLimits: sums and products that run over are refused, and so is more than a batch holds. Each of these ranges
// would lie in memory that is there if a sum were taken without looking.
func TestRangeLimits(t *testing.T) {
	mem := make([]byte, 1<<19)
	base := uintptr(unsafe.Pointer(&mem[0]))
	regions := []region{{base: base, mem: mem}}
	targets := make([]*transport.Target, 1)
	count := func(ranges ...Range) (int, error) {
		reqs, err := requests(nil, transport.Write, ranges, targets, regions)
		return len(reqs), err
	}
	half := Range{Local: base, Length: 1, Count: mostPieces / 2}
	more := half
	more.Count++
	const wide = 1<<46 + 1 // 1<<18 of them are 1<<64 and 1<<18 bytes
	for name, ranges := range map[string][]Range{
		"the last byte is behind the last address":  {{Local: ^uintptr(0) - 3, Length: 8}},
		"the last byte is behind the last offset":   {{Local: base, Remote: ^uint64(0) - 3, Length: 8}},
		"an offset that is negative as a number":    {{Local: base, Remote: 1 << 63, Length: 8}},
		"once around the addresses":                 {{Local: base, Length: 8, Count: 5, LocalStride: 1 << 62}},
		"almost around the addresses":               {{Local: base, Length: 24, Count: 17, LocalStride: 1<<60 - 1}},
		"back beyond the first address":             {{Local: 64, Length: 1 << 40, Count: 2, LocalStride: -(1 << 39)}},
		"back beyond the first offset":              {{Local: base, Remote: 8, Length: 64, Count: 2, RemoteStride: -16}},
		"more pieces than a batch, that touch":      {{Local: base, Length: 8, Count: mostPieces + 1, LocalStride: 8, RemoteStride: 8}},
		"pieces that touch, of more than 1<<64":     {{Local: base, Length: wide, Count: 1 << 18, LocalStride: wide, RemoteStride: wide}},
		"two ranges of more pieces than in a batch": {half, more},
	} {
		if n, err := count(ranges...); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %d requests, %v", name, n, err)
		}
	}
	if n, err := count(half, half); n != mostPieces || err != nil {
		t.Errorf("as many pieces as there may be: %d, %v", n, err)
	}
}
