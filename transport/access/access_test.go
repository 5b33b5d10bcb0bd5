package access

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNew(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []Range
		want []Range
	}{
		{"one", []Range{{5, 10}}, []Range{{5, 10}}},
		{"in order", []Range{{0, 1}, {2, 1}}, []Range{{0, 1}, {2, 1}}},
		{"not in order", []Range{{20, 5}, {0, 5}, {10, 5}}, []Range{{0, 5}, {10, 5}, {20, 5}}},
		{"adjacent", []Range{{10, 5}, {5, 5}, {15, 5}}, []Range{{5, 15}}},
		{"overlapping", []Range{{0, 10}, {5, 10}}, []Range{{0, 15}}},
		{"one in another", []Range{{0, 100}, {5, 10}, {50, 50}}, []Range{{0, 100}}},
		{"twice", []Range{{7, 3}, {7, 3}}, []Range{{7, 3}}},
		{"as far as it goes", []Range{{math.MaxInt64 - 1, 1}}, []Range{{math.MaxInt64 - 1, 1}}},
	} {
		in := slices.Clone(c.in)
		a, err := New(Read, c.in)
		if err != nil || !slices.Equal(a.ranges, c.want) || a.may != [2]bool{Read: true} {
			t.Errorf("%s: %+v, %v; want %v", c.name, a, err, c.want)
		}
		if !slices.Equal(in, c.in) {
			t.Errorf("%s: the caller's ranges were changed", c.name)
		}
	}
	for name, in := range map[string][]Range{
		"none": nil, "empty": {{0, 1}, {5, 0}}, "negative length": {{5, -1}}, "negative offset": {{-1, 5}}, "overflow": {{math.MaxInt64, 1}},
	} {
		if _, err := New(Write, in); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(2, []Range{{0, 1}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("op 2: %v", err)
	}
}

func TestAccessWithin(t *testing.T) {
	a, err := New(Read, []Range{{90, 10}, {0, 5}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Within(100); err != nil {
		t.Error(err)
	}
	if err := a.Within(99); !errors.Is(err, ErrInvalid) {
		t.Errorf("beyond the memory: %v", err)
	}
	if none := (Access{}); !none.None() || none.Within(0) != nil {
		t.Error("the zero Access opens something")
	}
}

func TestAccessCheck(t *testing.T) {
	window, err := New(Read, []Range{{100, 50}, {150, 50}, {300, 1}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		a      Access
		op     Op
		offset int64
		n      int64
		want   error
	}{
		{window, Read, 100, 100, nil}, // across the border of two that touch
		{window, Read, 140, 20, nil},
		{window, Read, 300, 1, nil},
		{window, Read, 99, 1, ErrBounds},
		{window, Read, 99, 2, ErrBounds},
		{window, Read, 199, 2, ErrBounds},
		{window, Read, 200, 1, ErrBounds},
		{window, Read, 150, 200, ErrBounds}, // from one range to the next
		{window, Read, 301, 1, ErrBounds},
		{window, Read, 0, 1, ErrBounds},
		{window, Read, -1, 1, ErrBounds},
		{window, Read, 100, -1, ErrBounds},
		{window, Read, math.MinInt64, 1, ErrBounds},
		{window, Read, math.MaxInt64, math.MaxInt64, ErrBounds},
		{window, Read, 0, 0, nil},
		{window, Write, 100, 1, ErrAccess},
		{window, Write, 0, 0, nil},
		{window, 2, 100, 1, ErrAccess},
		{Whole(10), Write, 0, 10, nil},
		{Whole(10), Read, 9, 1, nil},
		{Whole(10), Read, 9, 2, ErrBounds},
		{Access{}, Read, 0, 1, ErrAccess},
		{Access{}, Write, 0, 0, ErrAccess},
	} {
		for near := range len(c.a.ranges) + 2 {
			if _, err := c.a.Check(c.op, c.offset, c.n, near); !errors.Is(err, c.want) {
				t.Errorf("%v %d bytes at %d of %v, near %d: %v, want %v", c.op, c.n, c.offset, c.a, near, err, c.want)
			}
		}
	}
}

// FuzzAccess compares ranges and what is asked of them, both from outside, with a
// map of the bytes that are open.
func FuzzAccess(f *testing.F) {
	f.Add([]byte{0, 10, 10, 20, 5, 15, 40, 1}, []byte{0, 10, 9, 2, 40, 1})
	f.Add([]byte{255, 255, 0, 1, 254, 1}, []byte{255, 1, 250, 9, 0, 0})
	f.Fuzz(func(t *testing.T, in, asked []byte) {
		var open [512]bool
		var ranges []Range
		for ; len(in) >= 2; in = in[2:] {
			r := Range{int64(in[0]), int64(in[1])}
			if r.Length == 0 {
				continue
			}
			ranges = append(ranges, r)
			for i := range r.Length {
				open[r.Offset+i] = true
			}
		}
		a, err := New(Write, ranges)
		if (err != nil) != (len(ranges) == 0) {
			t.Fatalf("%v: %v", ranges, err)
		}
		for i := 1; i < len(a.ranges); i++ {
			if a.ranges[i].Offset <= a.ranges[i-1].Offset+a.ranges[i-1].Length {
				t.Fatalf("%v became %v: not merged", ranges, a.ranges)
			}
		}
		near := 0
		for ; len(asked) >= 2 && err == nil; asked = asked[2:] {
			offset, n := int64(asked[0]), int64(asked[1])
			var want error
			for i := range n {
				if !open[offset+i] {
					want = ErrBounds
				}
			}
			var got error
			if near, got = a.Check(Write, offset, n, near); !errors.Is(got, want) || near < 0 {
				t.Fatalf("%d bytes at %d of %v: %v, want %v", n, offset, a.ranges, got, want)
			}
			// The same far out, where sums of offset and length overflow.
			if len(asked) >= 16 {
				big, n := int64(binary.LittleEndian.Uint64(asked)), int64(binary.LittleEndian.Uint64(asked[8:]))
				if _, err := a.Check(Write, big, n, near); err == nil && n != 0 && (big < 0 || n < 0 || big > 510 || n > 510 || !open[big] || !open[big+n-1]) {
					t.Fatalf("%d bytes at %d of %v were allowed", n, big, a.ranges)
				}
			}
		}
	})
}

// BenchmarkAccessCheck is what a slice costs at the target, in the order that slices
// come in when all is well, and in none.
func BenchmarkAccessCheck(b *testing.B) {
	const block = 1 << 20
	for _, n := range []int{1, 16, 625} {
		var ranges []Range
		for i := range n {
			ranges = append(ranges, Range{int64(2*i) * block, block})
		}
		a, err := New(Read, ranges)
		if err != nil {
			b.Fatal(err)
		}
		for _, order := range []string{"in order", "random"} {
			offsets := make([]int64, 0, n*16)
			for _, r := range ranges {
				for at := int64(0); at < block; at += 64 << 10 {
					offsets = append(offsets, r.Offset+at)
				}
			}
			if order == "random" {
				rand.New(rand.NewPCG(1, 2)).Shuffle(len(offsets), func(i, j int) { offsets[i], offsets[j] = offsets[j], offsets[i] })
			}
			b.Run(order+"/"+map[int]string{1: "1 range", 16: "16 ranges", 625: "625 ranges"}[n], func(b *testing.B) {
				b.ReportAllocs()
				near, i := 0, 0
				for b.Loop() {
					if near, err = a.Check(Read, offsets[i], 64<<10, near); err != nil {
						b.Fatal(err)
					}
					if i++; i == len(offsets) {
						i = 0
					}
				}
			})
		}
	}
}
