// Package pyrandom draws what Python's module random draws from the same seed, to the bit:
// benchmark clients seed it once and take from it which conversations are asked, in what
// order, and with which adapter. Only what those clients use is here. CPython 3.2 and later
// give the numbers that the tests hold; versions before 3.11 seed and draw alike.
package pyrandom

import (
	"math"
	"math/bits"

	"kvferry/load/mt19937"
)

// A Random is Python's random.Random. It is for one goroutine.
type Random struct{ source *mt19937.Source }

// New is random.Random(seed), and what random.seed(seed) leaves. Python takes a seed's
// absolute value, so -1 is 1.
func New(seed int64) *Random {
	abs := uint64(seed)
	if seed < 0 {
		abs = -abs
	}
	key := []uint32{uint32(abs)}
	if high := uint32(abs >> 32); high != 0 {
		key = append(key, high)
	}
	return &Random{mt19937.NewArray(key)}
}

// Random is random(): uniform on [0, 1).
func (r *Random) Random() float64 { return r.source.Float64() }

// Getrandbits is getrandbits(k), of k from 1 to 64. The low word is drawn first.
func (r *Random) Getrandbits(k int) uint64 {
	if k <= 32 {
		return uint64(r.source.Uint32() >> (32 - k))
	}
	low := uint64(r.source.Uint32())
	return low | uint64(r.source.Uint32()>>(64-k))<<32
}

// Randrange is randrange(n), and the index of choice() among n: uniform on [0, n), n above 0.
// Python draws as many bits as n has, until they are below it.
func (r *Random) Randrange(n int) int {
	k := bits.Len64(uint64(n))
	for {
		if v := r.Getrandbits(k); v < uint64(n) {
			return int(v)
		}
	}
}

// Randint is randint(a, b): uniform on [a, b], both included.
func (r *Random) Randint(a, b int) int { return a + r.Randrange(b-a+1) }

// Shuffle is shuffle(x) of n elements: Fisher and Yates from the end. swap exchanges two.
func (r *Random) Shuffle(n int, swap func(i, j int)) {
	for i := n - 1; i > 0; i-- {
		swap(i, r.Randrange(i+1))
	}
}

// Sample are the indices of sample(population, k) of n elements: k of them without replacement,
// in the order in which they are drawn; k up to n. CPython keeps those that are left in a list
// where that is smaller than a set of those that are taken.
func (r *Random) Sample(n, k int) []int {
	list := 21 // elements that a small set and a list take alike
	if k > 5 {
		list += int(math.Pow(4, math.Ceil(math.Log(float64(k)*3)/math.Log(4))))
	}
	drawn := make([]int, k)
	if n <= list {
		left := make([]int, n)
		for i := range left {
			left[i] = i
		}
		for i := range drawn {
			j := r.Randrange(n - i)
			drawn[i], left[j] = left[j], left[n-i-1]
		}
		return drawn
	}
	taken := make(map[int]bool, k)
	for i := range drawn {
		j := r.Randrange(n)
		for taken[j] {
			j = r.Randrange(n)
		}
		taken[j], drawn[i] = true, j
	}
	return drawn
}

// Choices is the index of one of choices() among n, all equally likely. It takes a float,
// and so another draw than choice().
func (r *Random) Choices(n int) int { return int(r.Random() * float64(n)) }

// Clone is a generator that draws the same from here on, by itself.
func (r *Random) Clone() *Random {
	source := *r.source
	return &Random{&source}
}
